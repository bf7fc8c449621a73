// STP, synergistic tensor and pipeline parallelism (arXiv 2510.27257, its repository's schedule):
// stages in a V, and pairs of computations of a rank braided into one, so that one's all-reduces of
// tensor parallelism run during the other's products. Forwards are braided with forwards, with
// weight gradients while the pipeline fills, and with backwards; 3p chunks on every rank, bubble
// (p-1)(F+I-W) chunks.
#include "base/error.h"
#include "base/units.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/two_stage_list.h"

namespace longspan {

Schedule braided(const ScheduleRequest& request) {
  const int32_t p = request.ranks, m = request.microbatches;
  if (m < 3 * p) {
    throw bad_input("stp of {} takes {} microbatches or more; got {}", counted(p, "rank", "ranks"),
                    3 * p, m);
  }
  Schedule schedule = empty_schedule(request, 2 * p);
  for (int32_t rank = 0; rank < p; ++rank) {
    // 0 is the stage on the way down, 1 the one on the way up.
    TwoStageList list(v_stage(request, rank, 0), v_stage(request, rank, 1));
    const int32_t beyond = p - 1 - rank;  // ranks between this one and the turn
    for (int32_t i = 0; i < 2 * beyond; ++i) list.forward(0);
    for (int32_t i = 0; i <= rank; ++i) {
      list.forward(0);
      list.forward(1);
    }
    // In pairs; an odd one comes first.
    for (int32_t left = rank + 1; left > 0; --left) list.forward(0, left % 2 == 0);
    for (int32_t i = 0; i < beyond; ++i) {
      list.forward(1, true);
      list.input(1);
      list.forward(0, true);
      list.weight();
    }
    const int32_t steady = 2 * (m - 3 * p + 1) + 1 + 2 * rank;
    for (int32_t i = 0; i < steady; ++i) {
      const int chunk = 1 - i % 2;
      list.forward(chunk, true);
      if (i < steady - rank) {
        list.backward(chunk);
      } else {
        list.input(chunk);
      }
    }
    for (int32_t i = 0; i < 2 * p - 2 - rank; ++i) {
      list.backward(0);
      list.forward(1, true);
      list.input(1);
    }
    for (int32_t i = 0; i <= rank; ++i) {
      list.backward(0);
      list.backward(1);
    }
    for (int32_t i = 0; i <= beyond; ++i) {
      list.backward(0);
      if (i == beyond) break;
      list.weight();
      list.weight();
    }
    for (int32_t i = 0; i < 2 * rank; ++i) list.weight();
    schedule.ranks[rank] = list.take();
  }
  return schedule;
}

}  // namespace longspan
