#include "planner/schedule/solver/opt_pipe.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "planner/schedule/check.h"
#include "planner/schedule/families/offload.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/solver/least_span.h"
#include "planner/schedule/solver/order_model.h"
#include "planner/schedule/solver/order_window.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {
using Kind = ActionKind;

// Above these limits there are too many rows to build, or the whole MILP is too large for the
// solver.
constexpr int64_t kMostActions = 600;
constexpr int64_t kMostBinaries = 1000;
constexpr int64_t kWindowNodes = 100;

bool is_of_copies(Kind kind) {
  return kind == Kind::offload || kind == Kind::await_offload || kind == Kind::reload;
}

// The schedule with each B split into I and W, and no actions that run as one; copies only if
// `copies`.
Schedule plain(const Schedule& schedule, bool copies) {
  Schedule made = schedule;
  for (std::vector<Action>& list : made.ranks) {
    std::vector<Action> split;
    for (Action a : list) {
      if (!copies && is_of_copies(a.kind)) continue;
      a.with_next = false;
      if (a.kind == Kind::backward) {
        split.push_back({Kind::backward_input, a.stage, a.microbatch, a.slice});
        a.kind = Kind::backward_weight;
      }
      split.push_back(a);
    }
    list = std::move(split);
  }
  return made;
}

bool runs_as_one(const Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& list) {
    return std::any_of(list.begin(), list.end(), [](const Action& a) { return a.with_next; });
  });
}

bool takes(const ScheduleFamily& family, const ScheduleRequest& request) {
  return request.virtual_stages >= family.least_virtual_stages &&
         (family.most_virtual_stages == 0 ||
          request.virtual_stages <= family.most_virtual_stages) &&
         (family.sliced || request.slices == 1);
}

// The family's schedule for the request, as it is or with all activations offloaded; none if the
// family has no schedule.
std::optional<Schedule> made_by(const ScheduleFamily& family, const ScheduleRequest& request,
                                bool copies) {
  try {
    Schedule schedule = make_schedule(family, request);
    if (!can_be_reordered(schedule)) return std::nullopt;
    if (copies) {
      schedule = plain(schedule, false);
      constexpr int kWorth = 4;  // in forwards, so that activations are away long enough
      offload(schedule, kWorth, [](const Action&) { return true; });
    }
    return schedule;
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::failed) throw;
    return std::nullopt;
  }
}

// The rest of the limits, over several MILPs.
class Budget {
 public:
  explicit Budget(const SolverLimits& limits) : limits_(limits) {}

  bool spent() const { return left(1).nodes <= 0 || left(1).seconds <= 0; }
  SolverLimits left(int64_t most_nodes) const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    SolverLimits left = limits_;
    left.nodes = std::min(limits_.nodes - nodes_, most_nodes);
    left.seconds = limits_.seconds - passed.count();
    left.cuts = false;  // an OrderModel's rows do the work of cuts
    return left;
  }
  int64_t nodes() const { return nodes_; }
  void spend(const MilpSolution& solution) { nodes_ += std::max<int64_t>(solution.nodes, 1); }

 private:
  SolverLimits limits_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t nodes_ = 0;
};

// Keeps the schedule of a solution if it is faster.
bool take(OptimalSchedule& best, const OrderModel& model, const MilpSolution& solution,
          const ScheduleCosts& costs, int64_t memory_limit) {
  if (solution.values.empty()) return false;
  Schedule made = model.schedule_of(solution.values);
  if (first_fault(made, costs, memory_limit)) return false;
  const double cost = simulate(made, costs).cost;
  if (cost >= best.cost * (1 - 1e-9)) return false;
  best.schedule = std::move(made);
  best.cost = cost;
  return true;
}

// Whether no schedule can be faster.
bool is_best(const OptimalSchedule& schedule) {
  return schedule.bound >= schedule.cost * (1 - 1e-9);
}

// Windows of about this many actions, on this many ranks or fewer.
struct WindowSize {
  int32_t ranks;
  double actions;
};

// Windows that cover the schedule, each half over the next.
std::vector<FixedOrder::Window> windows_of(const FixedOrder& order, const WindowSize& size) {
  const int32_t ranks = std::min(size.ranks, order.ranks());
  const double on_ranks = static_cast<double>(order.items()) * ranks / order.ranks();
  const double width = order.makespan() / std::max(2.0, on_ranks / size.actions);
  std::vector<FixedOrder::Window> windows;
  for (double from = 0; from + width / 2 < order.makespan(); from += width / 2) {
    for (int32_t rank = 0;; rank += std::max(1, ranks / 2)) {
      const int32_t first = std::min(rank, order.ranks() - ranks);
      windows.push_back({from, from + width, first, first + ranks});
      if (first + ranks == order.ranks()) break;
    }
  }
  return windows;
}

// Optimizes the order within windows one after another with the rest fixed, repeatedly, until none
// improves. A window that shortens nothing may move forwards and backwards to earlier, which leaves
// more room to the next.
void improve_by_windows(OptimalSchedule& best, const ScheduleCosts& costs, int64_t memory_limit,
                        Budget& budget, const WindowSize& size) {
  constexpr double kLess = 1 - 1e-9, kNoMore = 1 + 1e-12;
  std::optional<FixedOrder> order(std::in_place, best.schedule, costs, memory_limit);
  for (bool improved = true; improved;) {
    improved = false;
    for (const FixedOrder::Window& window : windows_of(*order, size)) {
      if (budget.spent() || is_best(best)) return;
      const auto model = order->model_of(window);
      if (!model) continue;
      const MilpSolution solution = solve(model->milp, budget.left(kWindowNodes), model->start);
      budget.spend(solution);
      if (solution.values.empty()) continue;
      Schedule made = order->schedule_of(*model, solution.values);
      if (first_fault(made, costs, memory_limit)) continue;
      const FixedOrder other(made, costs, memory_limit);
      const bool faster = other.cost() < order->cost() * kLess;
      const bool earlier =
          other.cost() <= order->cost() * kNoMore && other.starts() < order->starts() * kLess;
      if (!faster && !earlier) continue;
      improved = true;
      best.schedule = std::move(made);
      order.emplace(best.schedule, costs, memory_limit);
      best.cost = order->cost();
    }
  }
}

// Larger windows find more, in more time.
void improve_by_windows(OptimalSchedule& best, const ScheduleCosts& costs, int64_t memory_limit,
                        Budget& budget) {
  for (const WindowSize& size : {WindowSize{8, 16}, WindowSize{8, 32}, WindowSize{4, 48}}) {
    improve_by_windows(best, costs, memory_limit, budget, size);
  }
}

}  // namespace

bool can_be_reordered(const Schedule& schedule) {
  if (schedule.pipes > 1 || !schedule.offloaded_shares.empty() || schedule.moving_stages) {
    return false;
  }
  for (const std::vector<Action>& list : schedule.ranks) {
    for (const Action& a : list) {
      const bool known = a.kind == Kind::forward || a.kind == Kind::backward ||
                         a.kind == Kind::backward_input || a.kind == Kind::backward_weight ||
                         is_of_copies(a.kind);
      if (!known) return false;
    }
  }
  return true;
}

NamedSchedule best_of_families(const ScheduleRequest& request) {
  std::optional<NamedSchedule> best;
  for (const ScheduleFamily& family : schedule_families()) {
    if (!takes(family, request)) continue;
    for (const bool copies : {false, true}) {
      if (copies && request.memory_limit == 0) continue;
      ScheduleRequest own = request;
      if (!family.grouped) own.group = 0;
      // Offloaded activations do not count, so families that adapt to a memory limit get a higher
      // one.
      for (const int32_t times : {1, 2, 4}) {
        if (times > 1 && !(copies && family.takes_memory_limit)) continue;
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
  if (!can_be_reordered(start.schedule)) {
    throw bad_input(
        "the order of {} cannot be optimised; expected forwards and backwards of one "
        "pipe, and copies of whole activations",
        start.name);
  }
  if (const auto fault = first_fault(start.schedule, costs, memory_limit)) {
    throw bad_input("{} is no schedule to begin with: {}", start.name, *fault);
  }
  OptimalSchedule best;
  best.start = start.name;
  best.schedule = start.schedule;
  best.cost = best.start_cost = simulate(start.schedule, costs).cost;
  if (Schedule split = plain(start.schedule, true); !first_fault(split, costs, memory_limit)) {
    const double cost = simulate(split, costs).cost;
    if (cost <= best.cost) {
      best.cost = cost;
      best.schedule = std::move(split);
    }
  }
  const Schedule actions = plain(start.schedule, false);
  best.bound = std::min(least_span(actions, costs, memory_limit), best.cost);
  Budget budget(limits);
  if (!runs_as_one(best.schedule)) improve_by_windows(best, costs, memory_limit, budget);
  const LinkedActions linked = link(actions);
  std::optional<OrderModel> model;
  if (!is_best(best) && static_cast<int64_t>(linked.actions.size()) <= kMostActions) {
    // A little above the best, so that rounding does not exclude it.
    model.emplace(actions, linked, costs, memory_limit, best.cost * (1 + 1e-9), true);
    best.bound = std::clamp(model->bound(), best.bound, best.cost);
    best.binaries = model->milp().whole_columns();
  }
  best.nodes = budget.nodes();
  if (is_best(best)) {
    best.stop = Stop::optimal;
    return best;
  }
  if (budget.spent()) best.stop = budget.left(1).nodes <= 0 ? Stop::nodes : Stop::seconds;
  if (budget.spent() || !model || best.binaries > kMostBinaries) return best;
  const MilpSolution solution =
      solve(model->milp(), budget.left(limits.nodes), model->choices_of(best.schedule));
  budget.spend(solution);
  take(best, *model, solution, costs, memory_limit);
  best.stop = solution.stop;
  best.nodes = budget.nodes();
  // If infeasible, no schedule is faster than the current span; if optimal, none is faster than the
  // result.
  const bool done = solution.stop == Stop::optimal || solution.stop == Stop::infeasible;
  const double bound = done ? best.cost : model->time_of(solution.bound);
  best.bound = std::clamp(bound, std::min(best.bound, best.cost), best.cost);
  return best;
}

OptimalSchedule opt_pipe(const ScheduleRequest& request, const SolverLimits& limits) {
  return reorder(best_of_families(request), request.costs, request.memory_limit, limits);
}

}  // namespace longspan
