// 1F1B (PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473): rank r starts its first
// backward after p-r forwards, and holds at most that many microbatches. Bubble (p-1)(F+B).
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {

Schedule one_forward_one_backward(const ScheduleRequest& request) {
  Schedule schedule = empty_schedule(request, request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] =
        one_and_one(in_order(request, ActionKind::forward, rank),
                    in_order(request, ActionKind::backward, rank), request.ranks - 1 - rank);
  }
  return schedule;
}

}  // namespace longspan
