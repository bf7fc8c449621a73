#include "planner/schedule/solver/partial_order.h"

#include <algorithm>
#include <map>
#include <utility>

namespace longspan {

PartialOrder::PartialOrder(const Schedule& schedule, const LinkedActions& linked,
                           const ScheduleCosts& costs) {
  durations_.reserve(linked.actions.size());
  for (const Action& a : linked.actions) durations_.push_back(duration_of(schedule, costs, a));
  least_.assign(int64_t{count()} * count(), -1);
  for (int32_t a = 0; a < count(); ++a) least_[int64_t{a} * count() + a] = 0;
  std::map<std::pair<ActionKind, int32_t>, int32_t> last;  // the last action of a kind and stage
  for (int32_t b = 0; b < count(); ++b) {
    const Action& action = linked.actions[b];
    for (const Wait& wait : linked.waits_of(b)) {
      const double message =
          wait.delayed ? costs.message(linked.actions[wait.action].stage, action.stage) : 0;
      add(wait.action, b, durations_[wait.action] + message);
    }
    const auto [before, first] = last.try_emplace({action.kind, action.stage}, b);
    if (!first) add(before->second, b);
    before->second = b;
  }
}

void PartialOrder::add(int32_t a, int32_t b, double time) {
  if (least(a, b) >= time) return;
  std::vector<int32_t> after;
  for (int32_t v = 0; v < count(); ++v) {
    if (least(b, v) >= 0) after.push_back(v);
  }
  for (int32_t u = 0; u < count(); ++u) {
    if (least(u, a) < 0) continue;
    const double until = least(u, a) + time;
    double* from = &least_[int64_t{u} * count()];
    for (const int32_t v : after) from[v] = std::max(from[v], until + least(b, v));
  }
}

}  // namespace longspan
