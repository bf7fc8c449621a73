#include "planner/schedule/schedule.h"

#include <algorithm>

namespace longspan {

bool Schedule::has(ActionKind kind) const {
  return std::any_of(ranks.begin(), ranks.end(), [&](const std::vector<Action>& list) {
    return std::any_of(list.begin(), list.end(), [&](const Action& a) { return a.kind == kind; });
  });
}

std::vector<int32_t> Schedule::ranks_of_stages() const {
  std::vector<int32_t> result(static_cast<size_t>(all_stages()), 0);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Action& action : ranks[rank]) {
      if (action.kind == ActionKind::forward) result[action.stage] = static_cast<int32_t>(rank);
    }
  }
  return result;
}

}  // namespace longspan
