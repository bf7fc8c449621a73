#include "planner/optimal/opt_pipe.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "planner/optimal/order_model.h"
#include "planner/schedule/check.h"
#include "planner/schedule/families/offload.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// Above these the solver finds nothing within limits that anyone would wait for.
constexpr int64_t kMostActions = 1200;
constexpr int64_t kMostBinaries = 6000;

bool is_copy(Kind kind) {
  return kind == Kind::offload || kind == Kind::await_offload || kind == Kind::reload;
}

// Computations only, each by itself, backwards taken apart.
Schedule plain(const Schedule& schedule, bool copies) {
  Schedule made = schedule;
  for (std::vector<Action>& list : made.ranks) {
    std::vector<Action> split;
    for (Action a : list) {
      if (!copies && is_copy(a.kind)) continue;
      a.with_next = false;
      if (a.kind == Kind::backward) {
        split.push_back({Kind::backward_input, a.stage, a.micro_batch, a.slice});
        a.kind = Kind::backward_weight;
      }
      split.push_back(a);
    }
    list = std::move(split);
  }
  return made;
}

void check_start(const Schedule& schedule) {
  if (schedule.pipes > 1) {
    throw bad_input("the order of a schedule that is fed from both ends cannot be optimised");
  }
  if (schedule.adaptive_offload) {
    throw bad_input("the order of a schedule that offloads parts of slices cannot be optimised");
  }
  for (const std::vector<Action>& list : schedule.ranks) {
    for (const Action& a : list) {
      const bool known = a.kind == Kind::forward || a.kind == Kind::backward ||
                         a.kind == Kind::backward_input || a.kind == Kind::backward_weight ||
                         is_copy(a.kind);
      if (!known) {
        throw bad_input("the order of {} cannot be optimised; expected forwards and backwards",
                        to_string(a, schedule.slices));
      }
    }
  }
}

bool takes(const ScheduleFamily& family, const ScheduleRequest& request) {
  return request.virtual_stages >= family.least_virtual_stages &&
         (family.most_virtual_stages == 0 ||
          request.virtual_stages <= family.most_virtual_stages) &&
         (family.sliced || request.slices == 1);
}

// The family's schedule for the request, as it is or with all activations offloaded; none where it
// has none.
std::optional<Schedule> made_by(const ScheduleFamily& family, const ScheduleRequest& request,
                                bool copies) {
  try {
    Schedule schedule = make_schedule(family, request);
    check_start(schedule);
    if (copies) {
      schedule = plain(schedule, false);
      constexpr int kWorth = 4;  // forwards: so that it is away for a while
      offload(schedule, kWorth, [](const Action&) { return true; });
    }
    return schedule;
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::failed) throw;
    return std::nullopt;
  }
}

}  // namespace

NamedSchedule best_of_families(const ScheduleRequest& request) {
  std::optional<NamedSchedule> best;
  for (const ScheduleFamily& family : schedule_families()) {
    if (!takes(family, request)) continue;
    for (const bool copies : {false, true}) {
      if (copies && request.memory_limit == 0) continue;
      ScheduleRequest own = request;
      if (!family.grouped) own.group = 0;
      // What is away need not fit: families that arrange themselves within memory get more of it.
      for (const int32_t times : {1, 2, 4}) {
        if (times > 1 && !(copies && family.limited)) continue;
        own.memory_limit = request.memory_limit * times;
        std::optional<Schedule> made = made_by(family, own, copies);
        if (!made || first_fault(*made, request.costs, request.memory_limit)) continue;
        const double cost = simulate(*made, request.costs).cost;
        if (best && cost >= best->cost) continue;
        best = {fmt::format("{}{}", family.name, copies ? " offloaded" : ""), std::move(*made),
                cost};
      }
    }
  }
  if (!best) {
    throw no_fit("no schedule of {} ranks with {} stages each keeps within the memory limit",
                 request.ranks, request.virtual_stages);
  }
  return *std::move(best);
}

OptimalSchedule reorder(const NamedSchedule& start, const ScheduleCosts& costs,
                        int64_t memory_limit, const SolverLimits& limits) {
  check_start(start.schedule);
  if (const auto fault = first_fault(start.schedule, costs, memory_limit)) {
    throw bad_input("{} is no schedule to begin with: {}", start.name, *fault);
  }
  OptimalSchedule best;
  best.start = start.name;
  const auto take = [&](Schedule made) {
    const double cost = simulate(made, costs).cost;
    if (best.schedule.ranks.empty() || cost < best.cost) {
      best.cost = cost;
      best.schedule = std::move(made);
    }
  };
  take(start.schedule);
  best.start_cost = best.cost;
  if (Schedule split = plain(start.schedule, true); !first_fault(split, costs, memory_limit)) {
    take(std::move(split));
  }
  const Schedule actions = plain(start.schedule, false);
  const LinkedActions linked = link(actions);
  if (static_cast<int64_t>(linked.actions.size()) > kMostActions) return best;
  // A little longer than the best, so that rounding does not cut it off.
  const OrderModel model(actions, linked, costs, memory_limit, best.cost * (1 + 1e-9), true);
  best.bound = std::min(model.bound(), best.cost);
  best.binaries = model.milp().whole_columns();
  if (best.bound >= best.cost) {
    best.stop = Stop::optimal;
    return best;
  }
  if (best.binaries > kMostBinaries) return best;
  const MilpSolution solution = solve(model.milp(), limits, model.choices_of(best.schedule));
  best.stop = solution.stop;
  best.nodes = solution.nodes;
  if (!solution.values.empty()) {
    Schedule made = model.schedule_of(solution.values);
    if (!first_fault(made, costs, memory_limit)) take(std::move(made));
  }
  // Without a solution within the start's span there is none that is faster.
  const double bound =
      solution.stop == Stop::infeasible ? best.cost : model.time_of(solution.bound);
  best.bound = std::clamp(bound, best.bound, best.cost);
  return best;
}

OptimalSchedule opt_pipe(const ScheduleRequest& request, const SolverLimits& limits) {
  return reorder(best_of_families(request), request.costs, request.memory_limit, limits);
}

}  // namespace longspan
