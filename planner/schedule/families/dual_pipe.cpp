// DualPipe and DualPipeV (DeepSeek-V3, arXiv 2412.19437; DualPipe's README): a forward and a
// backward of opposite directions run as one, so that the computation of one hides the exchanges of
// the other.
//
//   DualPipe: two copies of the model, whose microbatches enter at opposite ends of the ranks.
//   DualPipeV: the same cut in half and folded: one copy, two stages on each rank in a V.
//
// Bubble (s/2-1)(F&B + B - 3W) with s stages per microbatch; every rank holds the activations of s
// + 1 stages.
#include "base/error.h"
#include "base/units.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/two_stage_list.h"

namespace longspan {
namespace {

// The list of rank `near` of `ranks`, counted from where direction 0 enters to where it turns or
// meets the other half. Direction 0 has stage `first` on this rank, direction 1 `second`.
ActionList dual_list(int32_t ranks, int32_t near, int32_t microbatches, int32_t first,
                     int32_t second) {
  TwoStageList list(first, second);
  const int32_t beyond = ranks - 1 - near;  // ranks between this one and the turn
  for (int32_t i = 0; i < 2 * beyond; ++i) list.forward(0);
  for (int32_t i = 0; i <= near; ++i) {
    list.forward(0);
    list.forward(1);
  }
  for (int32_t i = 0; i < beyond; ++i) {
    list.input(1);
    list.weight();
    list.forward(1);
  }
  for (int32_t i = 0; i < microbatches - 2 * ranks + near + 1; ++i) {
    // At the turn the first backward depends on the forward next to it, so they cannot run as one.
    list.forward(0, i > 0 || beyond > 0);
    list.backward(1);
    list.forward(1, true);
    list.backward(0);
  }
  for (int32_t i = 0; i < beyond; ++i) {
    list.backward(1);
    list.forward(1, true);
    list.backward(0);
  }
  // The later half postpones its weight gradients to the bubbles at the end.
  for (int32_t i = 0; i < 2 * (near + 1); ++i) {
    const int direction = 1 - i % 2;
    if (i > near) {
      list.input(direction);
    } else {
      list.backward(direction);
    }
  }
  for (int32_t i = 0; i < beyond; ++i) {
    list.weight();
    list.input(0);
  }
  for (int32_t i = 0; i <= near; ++i) list.weight();
  return list.take();
}

}  // namespace

Schedule dual_pipe_v(const ScheduleRequest& request) {
  const int32_t p = request.ranks, m = request.microbatches;
  if (m < 2 * p) {
    throw bad_input("dualpipe-v of {} ranks takes {} microbatches or more; got {}", p, 2 * p, m);
  }
  Schedule schedule = empty_schedule(request, 2 * p);
  for (int32_t rank = 0; rank < p; ++rank) {
    schedule.ranks[rank] =
        dual_list(p, rank, m, v_stage(request, rank, 0), v_stage(request, rank, 1));
  }
  return schedule;
}

Schedule dual_pipe(const ScheduleRequest& request) {
  const int32_t p = request.ranks, m = request.microbatches;
  if (p % 2 != 0 || m % 2 != 0 || m < 2 * p) {
    throw bad_input(
        "dualpipe takes an even number of ranks and an even number of microbatches, twice the "
        "ranks or more; got {} and {}",
        counted(p, "rank", "ranks"), counted(m, "microbatch", "microbatches"));
  }
  Schedule schedule = empty_schedule(request, p);
  schedule.pipes = 2;
  schedule.microbatches = m / 2;
  for (int32_t rank = 0; rank < p; ++rank) {
    const int32_t far = p - 1 - rank;
    const int32_t of_first = rank, of_second = p + far;  // the stage of each copy on this rank
    schedule.ranks[rank] = rank < far ? dual_list(p / 2, rank, m / 2, of_first, of_second)
                                      : dual_list(p / 2, far, m / 2, of_second, of_first);
  }
  return schedule;
}

}  // namespace longspan
