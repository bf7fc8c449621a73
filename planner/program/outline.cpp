#include "planner/program/outline.h"

#include <bit>

#include "base/units.h"
#include "planner/program/layout_walk.h"
#include "planner/program/lowering/lowering.h"

namespace longspan {
namespace {

// Lays the program out as it passes by.
class Outliner final : public LifetimeWatcher {
 public:
  explicit Outliner(Outline& outline) : outline_(outline), walk_(outline.program) {}
  void begins(BufferId, const Buffer&) override {}  // with the op that touches it
  void ends(BufferId id, const Buffer&) override { walk_.end(id); }
  bool wants_ops() const override { return true; }
  void passes(const Op& op) override {
    const LayoutWalk::Step step = walk_.run(op);
    PackedQueue& queue = outline_.queues[static_cast<int>(op.stream)];
    queue.ops.push_back(static_cast<uint32_t>(op.shape) << kStreamCount | step.wait_set);
    for (unsigned set = step.wait_set; set != 0; set &= set - 1) {
      queue.waits.push_back(step.waits[std::countr_zero(set)]);
    }
    const OpShape& shape = outline_.program.shapes[op.shape];
    if (outline_.first_backward.ordinal < 0 && first_backward_.is(op, shape)) {
      outline_.first_backward = {static_cast<int>(op.stream), step.ordinal};
    }
  }
  const LayoutWalk& walk() const { return walk_; }

 private:
  Outline& outline_;
  LayoutWalk walk_;
  FirstBackward first_backward_;
};

}  // namespace

Outline outline_of(const StepRequest& request) {
  Outline outline;
  outline.program = empty_program(request);
  Program& program = outline.program;
  const RankOfPipeline rank = whole_model(request);
  Outliner outliner(outline);
  StepLowering lowering(program, rank, &outliner);
  lowering.run();
  outline.ops = lowering.ops();
  for (int tier = 0; tier < kTierCount; ++tier) {
    outline.arena_bytes[tier] = outliner.walk().arena_bytes(tier);
    outline.live_bytes[tier] = outliner.walk().most_live_bytes(tier);
  }
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.persistent) continue;
    const int tier = static_cast<int>(buffer.tier);
    const int64_t bytes = round_up(program.bytes[buffer.tensor], kArenaAlignment);
    outline.arena_bytes[tier] += bytes;
    outline.live_bytes[tier] += bytes;
  }
  program.buffers = {};
  return outline;
}

}  // namespace longspan
