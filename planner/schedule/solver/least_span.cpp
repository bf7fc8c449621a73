#include "planner/schedule/solver/least_span.h"

#include <algorithm>
#include <vector>

namespace longspan {
namespace {

using Kind = ActionKind;

// The least time from the start of F to the end of I: forwards of all later stages, and input
// gradients on the way back.
double least_life(const Schedule& schedule, const ScheduleCosts& costs,
                  const std::vector<int32_t>& ranks, const Action& forward) {
  double time = 0;
  for (int32_t stage = forward.stage; stage < schedule.stages; ++stage) {
    for (const Kind kind : {Kind::forward, Kind::backward_input}) {
      time += duration_of(schedule, costs, {kind, stage, forward.microbatch, forward.slice});
    }
    if (stage > forward.stage && ranks[stage] != ranks[stage - 1]) {
      time += 2 * costs.message(stage - 1, stage);
    }
  }
  return time;
}

}  // namespace

double least_span(const Schedule& schedule, const ScheduleCosts& costs, int64_t memory_limit) {
  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  double longest = 0;
  for (const std::vector<Action>& list : schedule.ranks) {
    double work = 0, held = 0;  // memory times time
    for (const Action& a : list) {
      if (!is_compute(a.kind)) continue;
      work += duration_of(schedule, costs, a);
      if (a.kind != Kind::forward || memory_limit == 0) continue;
      const StageMemory& memory = costs.memory_of(schedule, a.stage);
      const auto part = [&](int64_t whole) {
        return static_cast<double>(slice_of(schedule, costs, a, whole));
      };
      const Action weight = {Kind::backward_weight, a.stage, a.microbatch, a.slice};
      held += (part(memory.activations) - part(memory.offloaded)) *
                  least_life(schedule, costs, ranks, a) +
              std::max(0.0, part(memory.for_weights) - part(memory.offloaded)) *
                  duration_of(schedule, costs, weight);
    }
    longest = std::max(longest, work);
    if (memory_limit > 0) longest = std::max(longest, held / static_cast<double>(memory_limit));
  }
  return longest;
}

}  // namespace longspan
