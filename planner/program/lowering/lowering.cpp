// Entry points of lowering: a program, or only its arenas.
#include "planner/program/lowering/lowering.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "planner/program/arena_allocator.h"
#include "planner/program/layer_kinds.h"
#include "planner/program/ops_estimate.h"
#include "planner/strategy/slice_lengths.h"

namespace longspan {

Program empty_program(const StepRequest& request) {
  if (request.strategy.parallel.has_pipeline()) {
    throw bad_input("strategy: a pipeline has a program for each of its ranks, not one for all");
  }
  validate(request.strategy, request.model, request.sequence, "strategy");
  Program program;
  program.model = request.model;
  program.boundary = request.boundary;
  program.strategy = request.strategy;
  program.lengths = lengths_of(request.strategy, request.sequence);
  program.place = place_of(request.strategy.parallel, request.rank);
  program.place.mesh = request.mesh;
  program.place.meshes = request.meshes;
  program.vocabulary = request.vocabulary;
  program.dtype = request.dtype;
  program.compute_capability = request.compute_capability;
  program.microbatches = request.microbatches;
  program.bytes = tensor_bytes(request.model, program.lengths, request.strategy, request.dtype,
                               request.compute_capability);
  add_layer_kinds(program);
  return program;
}

namespace {

using TierBytes = std::array<int64_t, kTierCount>;

/// Thrown by an ArenaWalk with limits at the first buffer that exceeds them.
struct Exceeded {};

// Lays out arenas during lowering.
class ArenaWalk final : public LifetimeWatcher {
 public:
  /// `limits`: of all buffers of a tier, or null.
  ArenaWalk(const Program& program, LeaveOut leave_out, const TierBytes* limits)
      : program_(program), padded_(program), leave_out_(leave_out), limits_(limits) {}
  void begins(BufferId id, const Buffer& b) override {
    const int64_t bytes = padded_.of(b);
    if (bytes == 0) return;
    if (offsets_.size() <= static_cast<size_t>(id))
      offsets_.resize(2 * static_cast<size_t>(id) + 1);
    Arena& arena = arenas_[static_cast<int>(b.tier)];
    offsets_[id] = arena.allocator.allocate(bytes, nullptr);
    arena.live += bytes;
    arena.held[static_cast<int>(b.tensor)] += bytes;
    if (limits_ == nullptr) return;
    if (first_) {
      first_ = false;
      const TierBytes persistent = persistent_bytes();
      for (int tier = 0; tier < kTierCount; ++tier) {
        arenas_[tier].most = (*limits_)[tier] - persistent[tier];
      }
    }
    if (arena.allocator.top() > arena.most) throw Exceeded();
  }
  void ends(BufferId id, const Buffer& b) override {
    const int64_t bytes = padded_.of(b);
    if (bytes == 0) return;
    Arena& arena = arenas_[static_cast<int>(b.tier)];
    arena.look();
    arena.allocator.free(offsets_[id], bytes, nullptr);
    arena.live -= bytes;
    arena.held[static_cast<int>(b.tensor)] -= bytes;
  }
  LeaveOut leave_out() const override { return leave_out_; }
  void append_state(std::vector<int64_t>& state) const override {
    arenas_[static_cast<int>(Tier::device)].allocator.append_state(state);
  }
  uint64_t state_key() const override {
    return arenas_[static_cast<int>(Tier::device)].allocator.state_key();
  }
  int64_t offset(BufferId id) const override {
    return static_cast<size_t>(id) < offsets_.size() ? offsets_[id] : 0;
  }
  /// The arenas, including persistent buffers, which are below all others.
  Arenas finish(int64_t ops) {
    Arenas result;
    result.ops = ops;
    result.bytes = persistent_bytes();
    for (Arena& arena : arenas_) arena.look();
    for (const Buffer& b : program_.buffers) {
      if (!b.persistent) continue;
      arenas_[static_cast<int>(b.tier)].held_at_peak[static_cast<int>(b.tensor)] += padded_.of(b);
    }
    for (int tier = 0; tier < kTierCount; ++tier) {
      result.bytes[tier] += arenas_[tier].allocator.top();
      int64_t most = 0;
      for (int t = 0; t < kTensorCount; ++t) {
        const int64_t bytes = arenas_[tier].held_at_peak[t];
        if (bytes > most) result.largest[tier] = static_cast<Tensor>(t);
        most = std::max(most, bytes);
      }
    }
    return result;
  }

 private:
  using ByTensor = std::array<int64_t, kTensorCount>;
  struct Arena {
    ArenaAllocator allocator;
    int64_t live = 0, peak = 0;
    int64_t most = 0;  // with limits
    ByTensor held{}, held_at_peak{};
    // Peaks are right before an end: without one the next moment is larger.
    void look() {
      if (live <= peak) return;
      peak = live;
      held_at_peak = held;
    }
  };

  // Persistent buffers are created before any other begins.
  TierBytes persistent_bytes() const {
    TierBytes bytes{};
    for (const Buffer& b : program_.buffers) {
      if (b.persistent) bytes[static_cast<int>(b.tier)] += padded_.of(b);
    }
    return bytes;
  }

  const Program& program_;
  PaddedBytes padded_;
  LeaveOut leave_out_;
  const TierBytes* limits_;
  bool first_ = true;
  std::array<Arena, kTierCount> arenas_;
  std::vector<int64_t> offsets_;  // per buffer
};

}  // namespace

RankOfPipeline whole_model(const StepRequest& request) {
  RankOfPipeline rank{{{0, 0, static_cast<int>(request.model.layers), request.boundary}}, {}};
  const auto slices = static_cast<int32_t>(request.strategy.parallel.pipeline.slices);
  const bool again = passes_again(request.strategy);
  if (slices > 1) {
    rank.slice_tokens = slice_lengths(request.model, request.strategy,
                                      request.sequence / request.strategy.parallel.ring);
  }
  // Without an end, the neighbour's part passes in messages.
  const bool before = !request.boundary.has_embedding, after = !request.boundary.has_loss;
  for (const Action& action : single_stage_schedule(request.microbatches, slices)) {
    const auto add = [&](ActionKind kind) {
      rank.actions.push_back(action);
      rank.actions.back().kind = kind;
    };
    const bool forward = action.kind == ActionKind::forward;
    const bool backward = action.kind == ActionKind::backward;
    if (forward && before) add(ActionKind::recv_forward);
    if (backward && after) add(ActionKind::recv_backward);
    if (backward && after) add(ActionKind::wait_send_forward);
    // The last slice's backward follows its only forward.
    if (backward && again && action.slice + 1 < slices) add(ActionKind::recompute);
    add(action.kind);
    if (forward && after) add(ActionKind::send_forward);
    if (backward && before) add(ActionKind::send_backward);
    if (backward && before) add(ActionKind::wait_send_backward);
  }
  return rank;
}

Program build_program(const StepRequest& request, const RankOfPipeline& rank) {
  Program program = empty_program(request);
  program.message_levels = rank.message_levels;
  // Without this, reallocation takes a tenth of lowering.
  constexpr int64_t kMost = int64_t{1} << 22;
  program.ops.reserve(std::min(kMost, ops_estimate(request)));
  program.stages = rank.stages;
  for (const StageLayers& stage : rank.stages) add_passing_kinds(program, stage);
  StepLowering(program, rank).run();
  return program;
}

Program build_program(const StepRequest& request) {
  return build_program(request, whole_model(request));
}

int64_t watch_program(const StepRequest& request, Program& program, LifetimeWatcher& watcher) {
  const RankOfPipeline rank = whole_model(request);
  StepLowering lowering(program, rank, &watcher);
  lowering.run();
  return lowering.ops();
}

namespace {

Arenas arenas(const StepRequest& request, const RankOfPipeline& rank, LeaveOut leave_out,
              const TierBytes* limits) {
  Program program = empty_program(request);
  for (const StageLayers& stage : rank.stages) add_passing_kinds(program, stage);
  ArenaWalk walk(program, leave_out, limits);
  StepLowering lowering(program, rank, &walk);
  try {
    lowering.run();
  } catch (const Exceeded&) {
  }
  return walk.finish(lowering.ops());
}

}  // namespace

Arenas arenas_of(const StepRequest& request, const RankOfPipeline& rank) {
  return arenas(request, rank, LeaveOut::same, nullptr);
}

Arenas arenas_of(const StepRequest& request, const std::array<int64_t, kTierCount>* limits) {
  return arenas(request, whole_model(request), LeaveOut::same, limits);
}

Arenas arenas_without_repeats(const StepRequest& request) {
  return arenas(request, whole_model(request), LeaveOut::close, nullptr);
}

}  // namespace longspan
