#include "planner/schedule/actions.h"

#include <fmt/format.h>

namespace longspan {

std::vector<Action> single_stage_schedule(int64_t micro_batches) {
  std::vector<Action> actions;
  actions.reserve(2 * micro_batches + 1);
  for (int32_t m = 0; m < micro_batches; ++m) {
    actions.push_back({ActionKind::forward, 0, m, 0});
    actions.push_back({ActionKind::backward, 0, m, 0});
  }
  actions.push_back({ActionKind::optimizer, 0, 0, 0});
  return actions;
}

std::string to_string(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    if (!text.empty()) text += ' ';
    switch (action.kind) {
      case ActionKind::forward:
        text += fmt::format("{}F{}", action.stage, action.micro_batch);
        break;
      case ActionKind::backward:
        text += fmt::format("{}B{}", action.stage, action.micro_batch);
        break;
      case ActionKind::optimizer:
        text += "OPTIMIZER";
        break;
    }
  }
  return text;
}

}  // namespace longspan
