// Breadth-first pipeline parallelism (arXiv 2211.05953): with several chunks on each rank, all
// microbatches go through a chunk before any goes through the next. Bubble (p-1)(F+B)/v. A stage's
// parameters are gathered only once per direction; every rank holds every microbatch. Backwards go
// from the last microbatch to the first, as in PyTorch's LoopedBFS.
#include <algorithm>

#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {

Schedule breadth_first(const ScheduleRequest& request) {
  Schedule schedule = empty_schedule(request, request.ranks * request.virtual_stages);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    ActionList& list = schedule.ranks[rank];
    for (int32_t chunk = 0; chunk < request.virtual_stages; ++chunk) {
      const ActionList forwards =
          in_order(request, ActionKind::forward, looped_stage(request, rank, chunk));
      list.insert(list.end(), forwards.begin(), forwards.end());
    }
    for (int32_t chunk = request.virtual_stages - 1; chunk >= 0; --chunk) {
      const ActionList backwards =
          in_order(request, ActionKind::backward, looped_stage(request, rank, chunk));
      list.insert(list.end(), backwards.rbegin(), backwards.rend());
    }
  }
  return schedule;
}

}  // namespace longspan
