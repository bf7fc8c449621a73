#include "planner/schedule/memory_steps.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace longspan {
namespace {

using Kind = ActionKind;

struct Step {
  double time;
  int64_t taken;  // freed if negative
  int32_t action;
};

int64_t unit_of(const Schedule& s, const Action& a) {
  return (int64_t{a.stage} * s.microbatches + a.microbatch) * s.slices + a.slice;
}

}  // namespace

std::pair<int64_t, int32_t> peak_memory(const Schedule& schedule, const LinkedActions& linked,
                                        const ScheduleCosts& costs, std::span<const double> starts,
                                        std::span<const double> ends, int32_t rank) {
  const int32_t begin = linked.first_of_rank[rank], end = linked.first_of_rank[rank + 1];
  bool copies = false;
  std::unordered_set<int64_t> recomputed;
  for (int32_t i = begin; i < end; ++i) {
    const Action& a = linked.actions[i];
    copies |= a.kind == Kind::offload;
    if (a.kind == Kind::recompute) recomputed.insert(unit_of(schedule, a));
  }
  int64_t held = 0, most = 0;
  int32_t where = -1;
  const auto take = [&](int64_t bytes, int32_t action) {
    held += bytes;
    if (held > most) {
      most = held;
      where = action;
    }
  };
  std::vector<Step> steps;  // with copies, changes by time instead of list order
  const auto change = [&](double time, int64_t bytes, int32_t action) {
    if (copies) {
      steps.push_back({time, bytes, action});
    } else {
      take(bytes, action);
    }
  };
  for (int32_t i = begin; i < end; ++i) {
    const Action& a = linked.actions[i];
    if (!has_microbatch(a.kind)) continue;
    const StageMemory& m = costs.memory_of(schedule, a.stage);
    const auto part = [&](int64_t whole) { return slice_of(schedule, costs, a, whole); };
    const auto away = [&] {
      return static_cast<int64_t>(static_cast<double>(part(m.offloaded)) *
                                  schedule.offloaded_share(a));
    };
    switch (a.kind) {
      case Kind::forward: {
        const bool again = !recomputed.empty() && recomputed.contains(unit_of(schedule, a));
        change(starts[i], part(again ? m.checkpoint : m.activations), i);
        break;
      }
      case Kind::recompute:
        change(starts[i], part(m.activations) - part(m.checkpoint), i);
        break;
      case Kind::backward_input:
        change(ends[i], part(m.for_weights) - part(m.activations), i);
        break;
      case Kind::backward_weight:
        change(ends[i], -part(m.for_weights), i);
        break;
      case Kind::backward:
        change(ends[i], -part(m.activations), i);
        break;
      case Kind::offload:
        change(ends[i], -away(), i);
        break;
      case Kind::reload:
        change(starts[i], away(), i);
        break;
      default:
        break;
    }
  }
  // Memory freed by an end comes before memory taken by a start.
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return a.time != b.time ? a.time < b.time : (a.taken < 0) > (b.taken < 0);
  });
  for (const Step& step : steps) take(step.taken, step.action);
  return {most, where};
}

}  // namespace longspan
