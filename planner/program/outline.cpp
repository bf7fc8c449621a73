#include "planner/program/outline.h"

#include <bit>

#include "base/units.h"
#include "planner/program/layout_walk.h"
#include "planner/program/lowering/lowering.h"

namespace longspan {
namespace {

// Lays out the program during lowering.
class Outliner final : public LifetimeWatcher {
 public:
  Outliner(Outline& outline, LeaveOut leave_out)
      : outline_(outline), walk_(outline.program), leave_out_(leave_out) {}
  void begins(BufferId, const Buffer&) override {}  // LayoutWalk::run() begins it
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
  LeaveOut leave_out() const override { return leave_out_; }
  void append_state(std::vector<int64_t>& state) const override {
    walk_.allocator(Tier::device).append_state(state);
  }
  uint64_t state_key() const override { return walk_.allocator(Tier::device).state_key(); }
  int64_t offset(BufferId id) const override { return walk_.offset(id); }
  int64_t position() const override { return walk_.ordinal(Stream::compute) - 1; }
  void leaves_out(int64_t times, int64_t from) override {
    outline_.left_out.push_back({from, position(), times});
  }
  const LayoutWalk& walk() const { return walk_; }

 private:
  Outline& outline_;
  LayoutWalk walk_;
  LeaveOut leave_out_;
  FirstBackward first_backward_;
};

Outline outlined(const StepRequest& request, LeaveOut leave_out) {
  Outline outline;
  outline.program = empty_program(request);
  Program& program = outline.program;
  const RankOfPipeline rank = whole_model(request);
  Outliner outliner(outline, leave_out);
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
    const int64_t bytes = round_up(program.bytes_of(buffer), kArenaAlignment);
    outline.arena_bytes[tier] += bytes;
    outline.live_bytes[tier] += bytes;
  }
  program.buffers = {};
  return outline;
}

}  // namespace

Outline outline_of(const StepRequest& request) { return outlined(request, LeaveOut::none); }

Outline outline_without_repeats(const StepRequest& request) {
  return outlined(request, LeaveOut::close);
}

}  // namespace longspan
