// ZB-H1 and ZB-H2 (Zero Bubble Pipeline Parallelism, arXiv 2401.10241): the backward is split, so
// that input gradients are passed on at once and weight gradients fill the bubbles.
//
//   ZB-H1: p-1-r forwards first, W of a microbatch r backwards late: 1F1B's memory,
//          bubble (p-1)(F+I-W).
//   ZB-H2: twice as many forwards first, W 2r backwards late: bubble (p-1)(F+I-2W).
//   Interleaved (PyTorch's InterleavedZeroBubble): ZB-H1 over v chunks, round robin, in groups as
//   in
//   interleaved 1F1B: (v-1) groups and p-1-r forwards first, W r backwards late.
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

Schedule handcrafted(const ScheduleRequest& request, int32_t times) {
  Schedule schedule = empty_schedule(request, request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] =
        with_delayed_weights(one_and_one(in_order(request, ActionKind::forward, rank),
                                         in_order(request, ActionKind::backward, rank),
                                         times * (request.ranks - 1 - rank)),
                             times * rank);
  }
  return schedule;
}

}  // namespace

Schedule interleaved_zero_bubble(const ScheduleRequest& request) {
  const int32_t p = request.ranks, v = request.virtual_stages;
  const int32_t group = equal_groups("interleaved-zb", request.microbatches, p);
  Schedule schedule = empty_schedule(request, p * v);
  for (int32_t rank = 0; rank < p; ++rank) {
    std::vector<ActionList> forwards, backwards;
    for (int32_t chunk = 0; chunk < v; ++chunk) {
      forwards.push_back(
          in_order(request, ActionKind::forward, looped_stage(request, rank, chunk)));
      backwards.push_back(
          in_order(request, ActionKind::backward, looped_stage(request, rank, v - 1 - chunk)));
    }
    schedule.ranks[rank] =
        with_delayed_weights(one_and_one(in_turns(forwards, group), in_turns(backwards, group),
                                         int64_t{v - 1} * group + p - 1 - rank),
                             rank);
  }
  return schedule;
}

Schedule zb_h1(const ScheduleRequest& request) { return handcrafted(request, 1); }
Schedule zb_h2(const ScheduleRequest& request) { return handcrafted(request, 2); }

}  // namespace longspan
