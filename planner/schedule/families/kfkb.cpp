// kFkB (Ada-Grouper, arXiv 2303.01675): 1F1B of groups of k microbatches. The bubble is 1F1B's, but
// messages of one microbatch travel while others of its group compute; memory is k times as large.
// If k does not divide the microbatches, the last group is smaller. k = 2 if the request has no
// group.
#include <algorithm>

#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {

Schedule kfkb(const ScheduleRequest& request) {
  const int32_t k = request.group > 0 ? request.group : 2;
  const int32_t m = request.microbatches, groups = (m + k - 1) / k;
  Schedule schedule = empty_schedule(request, request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    ActionList& list = schedule.ranks[rank];
    const auto add = [&](const Action& group) {
      for (int32_t i = group.microbatch * k; i < std::min(m, (group.microbatch + 1) * k); ++i) {
        list.push_back({group.kind, rank, i});
      }
    };
    ScheduleRequest of_groups = request;
    of_groups.microbatches = groups;
    for (const Action& group :
         one_and_one(in_order(of_groups, ActionKind::forward, rank),
                     in_order(of_groups, ActionKind::backward, rank), request.ranks - 1 - rank)) {
      add(group);
    }
  }
  return schedule;
}

}  // namespace longspan
