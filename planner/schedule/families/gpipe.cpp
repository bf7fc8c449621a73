// GPipe (arXiv 1811.06965): all forwards, then all backwards. Bubble (p-1)(F+B); every rank holds
// every microbatch.
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {

Schedule gpipe(const ScheduleRequest& request) {
  Schedule schedule = empty_schedule(request, request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] =
        one_and_one(in_order(request, ActionKind::forward, rank),
                    in_order(request, ActionKind::backward, rank), request.microbatches);
  }
  return schedule;
}

}  // namespace longspan
