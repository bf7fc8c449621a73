#include "planner/schedule/solver/list_memory.h"

namespace longspan {

int64_t memory_taken(const Action& action, const Schedule& schedule, const ScheduleCosts& costs) {
  const StageMemory& m = costs.memory_of(schedule, action.stage);
  const auto part = [&](int64_t whole) { return slice_of(schedule, costs, action, whole); };
  switch (action.kind) {
    case ActionKind::forward:
      return part(m.activations);
    case ActionKind::backward_input:
      return part(m.for_weights) - part(m.activations);
    case ActionKind::backward_weight:
      return -part(m.for_weights);
    case ActionKind::backward:
      return -part(m.activations);
    case ActionKind::await_offload:
      return -part(m.offloaded);
    case ActionKind::reload:
      return part(m.offloaded);
    default:
      return 0;
  }
}

}  // namespace longspan
