#include "planner/schedule/schedule.h"

namespace longspan {

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
