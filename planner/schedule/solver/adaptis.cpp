#include "planner/schedule/solver/adaptis.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "planner/schedule/check.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

using Kind = ActionKind;
using Ends = std::vector<int64_t>;

constexpr int32_t kMostVirtualStages = 2;

// A cut, the family's schedule for it, and its cost.
struct Candidate {
  const ScheduleFamily* family = nullptr;
  int32_t virtual_stages = 1;
  Ends ends;
  ScheduleCosts costs;
  Schedule schedule;
  int64_t left = 0;  // the part of the memory limit for activations
  double cost = 0;
};

// A family and a placement, and the best cut for them so far.
struct Start {
  const ScheduleFamily* family = nullptr;
  int32_t virtual_stages = 1;
  std::optional<Candidate> best = {};
};

// Layers divided as evenly among stages as possible.
Ends even_cut(int64_t layers, int64_t stages) {
  Ends ends;
  for (int64_t stage = 1; stage <= stages; ++stage) ends.push_back(layers * stage / stages);
  return ends;
}

int64_t most_resident(const Schedule& schedule, const std::vector<int64_t>& resident) {
  std::vector<int64_t> held(schedule.ranks.size(), 0);
  const std::vector<int32_t> ranks = schedule.ranks_of_stages();
  for (size_t stage = 0; stage < ranks.size(); ++stage) held[ranks[stage]] += resident[stage];
  return *std::max_element(held.begin(), held.end());
}

// By stage: the most microbatches whose activations it holds at once.
std::vector<int64_t> in_flight(const Schedule& schedule) {
  std::vector<int64_t> now(schedule.stages, 0), most(schedule.stages, 0);
  for (const std::vector<Action>& list : schedule.ranks) {
    for (const Action& a : list) {
      if (a.kind == Kind::forward) most[a.stage] = std::max(most[a.stage], ++now[a.stage]);
      if (a.kind == Kind::backward || a.kind == Kind::backward_input) --now[a.stage];
    }
  }
  return most;
}

// All cuts with one boundary moved by a layer up or down.
std::vector<Ends> moved(const Ends& ends) {
  std::vector<Ends> all;
  for (size_t k = 0; k + 1 < ends.size(); ++k) {
    for (const int64_t step : {-1, 1}) {
      Ends other = ends;
      other[k] += step;
      if (other[k] > (k > 0 ? other[k - 1] : 0) && other[k] < other[k + 1]) all.push_back(other);
    }
  }
  return all;
}

// Ranks that never wait take this long: no schedule is faster.
double least_cost(const AdaptisRequest& r) {
  double work = 0;
  for (const LayerCosts& layer : r.layers) work += layer.forward + layer.input + layer.weight;
  return work * r.microbatches / r.ranks;
}

class Search {
 public:
  explicit Search(const AdaptisRequest& request) : r_(request), least_cost_(least_cost(request)) {}

  AdaptisPlan run() {
    std::vector<Start> starts;
    for (const ScheduleFamily& family : schedule_families()) {
      for (int32_t v = family.least_virtual_stages; v <= kMostVirtualStages; ++v) {
        if (family.most_virtual_stages > 0 && v > family.most_virtual_stages) break;
        if (static_cast<int64_t>(r_.layers.size()) < int64_t{v} * r_.ranks) break;
        starts.push_back({&family, v});
      }
    }
    // Families that arrange themselves by times take longest to generate, so they come last in case
    // time is short.
    std::stable_partition(starts.begin(), starts.end(),
                          [](const Start& start) { return !start.family->takes_memory_limit; });
    for (Start& start : starts) begin(start);
    // If time is short, it is best spent on the boundaries of the fastest.
    std::stable_sort(starts.begin(), starts.end(), [](const Start& a, const Start& b) {
      return a.best && (!b.best || a.best->cost < b.best->cost);
    });
    for (Start& start : starts) improve(start);
    if (!best_) {
      throw no_fit("no cut of {} layers over {} ranks keeps within the memory limit",
                   r_.layers.size(), r_.ranks);
    }
    return ordered();
  }

 private:
  // None if the family has no schedule for the cut within memory, or none whose order can be
  // optimized.
  std::optional<Candidate> made(const ScheduleFamily& family, int32_t v, const Ends& ends) const {
    Candidate c{&family, v, ends, costs_of_stages(r_.layers, ends, r_.communication), {}, 0, 0};
    ScheduleRequest request;
    request.ranks = r_.ranks;
    request.virtual_stages = v;
    request.microbatches = r_.microbatches;
    request.costs = c.costs;
    try {
      c.schedule = make_schedule(family, request);
      if (!can_be_reordered(c.schedule)) return std::nullopt;
      if (r_.memory_limit > 0) {
        c.left = left_for_activations(c.schedule, ends);
        if (c.left <= 0) return std::nullopt;
        request.memory_limit = c.left;
        if (family.takes_memory_limit) c.schedule = make_schedule(family, request);
      }
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::failed) throw;
      return std::nullopt;
    }
    if (first_fault(c.schedule, c.costs, c.left)) return std::nullopt;
    c.cost = simulate(c.schedule, c.costs).cost;
    return c;
  }

  int64_t left_for_activations(const Schedule& schedule, const Ends& ends) const {
    return r_.memory_limit - most_resident(schedule, resident_of_stages(r_.layers, ends));
  }

  // Whether time is up or no schedule can be faster. The search continues in any case until it has
  // found a schedule.
  bool is_over() const {
    return best_ && (seconds_left() <= 0 || best_->cost <= least_cost_ * (1 + 1e-9));
  }
  double seconds_left() const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    return r_.limits.seconds - passed.count();
  }

  // Keeps the family's schedule for the cut if it is faster.
  bool consider(Start& start, const Ends& ends) {
    if (ends.empty() || is_over()) return false;
    std::optional<Candidate> made = this->made(*start.family, start.virtual_stages, ends);
    if (!made || (start.best && made->cost >= start.best->cost * (1 - 1e-9))) return false;
    start.best = std::move(made);
    if (!best_ || start.best->cost < best_->cost) best_ = start.best;
    return true;
  }

  Ends cut_for(const Start& start, const std::vector<int64_t>& in_flight) const {
    return cut_layers(r_.layers, start.virtual_stages * r_.ranks, r_.memory_limit, in_flight);
  }

  // Tries equal numbers of layers, and the cut that minimizes the slowest stage.
  void begin(Start& start) {
    const int32_t stages = start.virtual_stages * r_.ranks;
    if (consider(start, even_cut(static_cast<int64_t>(r_.layers.size()), stages)) &&
        (even_cost_ == 0 || start.best->cost < even_cost_)) {
      even_cost_ = start.best->cost;
    }
    consider(start, cut_for(start, std::vector<int64_t>(stages, 1)));
  }

  void improve(Start& start) {
    while (start.best && consider(start, cut_for(start, in_flight(start.best->schedule)))) {
    }
    for (bool improved = start.best.has_value(); improved;) {
      improved = false;
      for (const Ends& ends : moved(start.best->ends)) improved |= consider(start, ends);
    }
  }

  AdaptisPlan ordered() {
    AdaptisPlan plan{std::string(best_->family->name),
                     best_->virtual_stages,
                     best_->ends,
                     {},
                     best_->costs,
                     best_->left,
                     even_cost_};
    NamedSchedule start{plan.family, best_->schedule, best_->cost};
    SolverLimits limits = r_.limits;
    int64_t nodes = 0;
    for (bool improved = true; improved;) {
      improved = false;
      limits.nodes = r_.limits.nodes - nodes;
      limits.seconds = seconds_left();
      plan.schedule = reorder(start, plan.costs, plan.memory_limit, limits);
      nodes += plan.schedule.nodes;
      start.schedule = plan.schedule.schedule;
      start.cost = plan.schedule.cost;
      while (move_boundary(plan, start)) improved = true;
    }
    OptimalSchedule& order = plan.schedule;
    order.nodes = nodes;
    order.bound = std::max(order.bound, std::min(least_cost_, order.cost));
    if (order.bound >= order.cost * (1 - 1e-9)) order.stop = Stop::optimal;
    order.start_cost = best_->cost;
    return plan;
  }

  // Takes the first cut that shortens the step with the current order.
  bool move_boundary(AdaptisPlan& plan, NamedSchedule& start) const {
    for (const Ends& ends : moved(plan.ends)) {
      ScheduleCosts costs = costs_of_stages(r_.layers, ends, r_.communication);
      const double cost = simulate(start.schedule, costs).cost;
      if (cost >= start.cost * (1 - 1e-9)) continue;
      int64_t left = 0;
      if (r_.memory_limit > 0) {
        left = left_for_activations(start.schedule, ends);
        if (left <= 0 || first_fault(start.schedule, costs, left)) continue;
      }
      plan.ends = ends;
      plan.costs = std::move(costs);
      plan.memory_limit = left;
      start.cost = cost;
      return true;
    }
    return false;
  }

  const AdaptisRequest& r_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const double least_cost_;
  std::optional<Candidate> best_;
  double even_cost_ = 0;
};

}  // namespace

AdaptisPlan adaptis(const AdaptisRequest& request) {
  if (request.ranks < 1 || static_cast<int64_t>(request.layers.size()) < request.ranks) {
    throw bad_input("{} layers over {} ranks; expected a layer for each rank or more",
                    request.layers.size(), request.ranks);
  }
  return Search(request).run();
}

}  // namespace longspan
