// Optimised orders against all possible orders, and properties of every one of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "base/error.h"
#include "planner/schedule/check.h"
#include "planner/schedule/families/offload.h"
#include "planner/schedule/registry.h"
#include "planner/schedule/solver/least_span.h"
#include "planner/schedule/solver/opt_pipe.h"
#include "planner/schedule/solver/order_window.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// Time is no limit in tests: the answer may not depend on the machine.
constexpr SolverLimits kLimits{.nodes = 3000, .seconds = 1e6};

// All lists of one stage in which microbatches are in order and each has F, then I, then W.
std::vector<std::vector<Action>> all_lists(int32_t stage, int32_t microbatches) {
  std::vector<std::vector<Action>> all;
  std::vector<Action> list;
  int32_t done[3] = {};
  constexpr Kind kKinds[] = {Kind::forward, Kind::backward_input, Kind::backward_weight};
  const auto extend = [&](const auto& self) -> void {
    if (static_cast<int32_t>(list.size()) == 3 * microbatches) all.push_back(list);
    for (int kind = 0; kind < 3; ++kind) {
      if (done[kind] >= (kind == 0 ? microbatches : done[kind - 1])) continue;
      list.push_back({kKinds[kind], stage, done[kind]++});
      self(self);
      --done[kind];
      list.pop_back();
    }
  };
  extend(extend);
  return all;
}

// Whether the forward that waits for the copy comes before the gradient that asks for it back.
bool worth_offloading(const std::vector<Action>& list, const Action& forward) {
  const auto place = [&](Kind kind, int32_t microbatch) {
    return std::find(list.begin(), list.end(), Action{kind, forward.stage, microbatch});
  };
  const auto waiting = place(Kind::forward, forward.microbatch + 2);
  return waiting < place(Kind::backward_input, std::max(0, forward.microbatch - 1));
}

// The shortest span of all orders within memory, with any activations of
// the first rank offloaded if `copies`.
double least_of_all(const ScheduleRequest& request, bool copies) {
  Schedule schedule;
  schedule.stages = request.ranks;
  schedule.microbatches = request.microbatches;
  std::vector<std::vector<std::vector<Action>>> lists;
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    lists.emplace_back();
    for (std::vector<Action>& list : all_lists(rank, request.microbatches)) {
      // Without copies, the memory of a rank does not depend on the others.
      int64_t held = 0, most = 0;
      for (const Action& a : list) {
        const StageMemory& m = request.costs.memory_of(schedule, rank);
        held += a.kind == Kind::forward           ? m.activations
                : a.kind == Kind::backward_weight ? -m.for_weights
                                                  : m.for_weights - m.activations;
        most = std::max(most, held);
      }
      const bool leaves = copies && request.costs.memory_of(schedule, rank).offloaded > 0;
      if (leaves || most <= request.memory_limit || request.memory_limit == 0) {
        lists.back().push_back(std::move(list));
      }
    }
  }
  double least = std::numeric_limits<double>::infinity();
  schedule.ranks.resize(request.ranks);
  const auto choose = [&](const auto& self, int32_t rank) -> void {
    if (rank < request.ranks) {
      for (const std::vector<Action>& list : lists[rank]) {
        schedule.ranks[rank] = list;
        self(self, rank + 1);
      }
      return;
    }
    // All subsets of the first rank's forwards except the last two: nothing waits for their copies.
    const uint32_t subsets = copies ? 1U << (request.microbatches - 2) : 1;
    for (uint32_t subset = 0; subset < subsets; ++subset) {
      Schedule made = schedule;
      if (subset > 0) {
        offload(made, 0, [&](const Action& a) {
          return a.stage == 0 && (subset >> a.microbatch & 1) != 0 &&
                 worth_offloading(schedule.ranks[a.stage], a);
        });
      }
      try {
        const ScheduleTiming timing = simulate(made, request.costs);
        if (request.memory_limit > 0 && timing.peak_memory() > request.memory_limit) continue;
        least = std::min(least, timing.cost);
      } catch (const Error&) {
        // Ranks that wait for each other.
      }
    }
  };
  choose(choose, 0);
  return least;
}

ScheduleRequest random_request(unsigned seed, int32_t ranks, int32_t microbatches) {
  std::mt19937 random(seed);
  const auto number = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  ScheduleRequest request;
  request.ranks = ranks;
  request.microbatches = microbatches;
  request.costs.times.clear();
  request.costs.memory.clear();
  for (int32_t rank = 0; rank < ranks; ++rank) {
    request.costs.times.push_back({.forward = number(5, 15) / 10.0,
                                   .input = number(5, 15) / 10.0,
                                   .weight = number(5, 15) / 10.0,
                                   .offload = number(2, 15) / 10.0,
                                   .reload = number(2, 15) / 10.0});
    request.costs.memory.push_back({.activations = 4, .for_weights = number(0, 4)});
  }
  request.costs.communication = number(0, 4) / 10.0;
  request.costs.together = seed % 2 == 0;
  request.memory_limit = number(0, 2) == 0 ? 0 : number(5, 4 * ranks + 2);
  return request;
}

void check_sound(const OptimalSchedule& made, const ScheduleRequest& request) {
  const auto fault = first_fault(made.schedule, request.costs, request.memory_limit);
  INFO(fault.value_or(""));
  CHECK(!fault);
  CHECK(made.cost == simulate(made.schedule, request.costs).cost);
  CHECK(made.cost <= made.start_cost);
  CHECK(made.bound <= made.cost);
}

}  // namespace

TEST_CASE("the optimum of all orders, of random times and memory") {
  const auto [ranks, microbatches, seeds] =
      GENERATE(std::make_tuple(2, 3, 12U), std::make_tuple(3, 2, 12U), std::make_tuple(2, 4, 2U));
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    INFO(ranks << " ranks, " << microbatches << " microbatches, seed " << seed);
    const ScheduleRequest request = random_request(seed, ranks, microbatches);
    const OptimalSchedule made = opt_pipe(request, kLimits);
    check_sound(made, request);
    REQUIRE(made.stop == Stop::optimal);
    CHECK(made.cost == Approx(least_of_all(request, false)).epsilon(1e-5));
    CHECK(made.bound == Approx(made.cost).epsilon(1e-5));
  }
}

TEST_CASE("the optimum of all orders and all offloads") {
  int offloaded = 0;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    ScheduleRequest request = random_request(seed, 2, 5);
    // Gradients arrive late, and memory is short until then. The second rank has no choice.
    request.costs.communication = 5;
    request.memory_limit = 16;
    request.costs.memory[0] = {.activations = 4, .for_weights = 3, .offloaded = 4};
    request.costs.memory[1] = {.activations = 16, .for_weights = 16};
    const OptimalSchedule made = opt_pipe(request, kLimits);
    check_sound(made, request);
    REQUIRE(made.stop == Stop::optimal);
    CHECK(made.cost == Approx(least_of_all(request, true)).epsilon(1e-5));
    offloaded += made.schedule.ranks[0].size() > made.schedule.ranks[1].size();
    request.costs.memory[0].offloaded = 0;
    CHECK(made.cost <= opt_pipe(request, kLimits).cost * (1 + 1e-6));
  }
  CHECK(offloaded > 0);
}

TEST_CASE("in a third less memory than 1f1b's, faster than every family, and the same again") {
  ScheduleRequest request;
  request.ranks = 3;
  request.microbatches = 6;
  request.costs = uniform_costs(
      1, {}, {.activations = 10, .for_weights = 5, .checkpoint = 0, .offloaded = 0}, 0.1);
  request.memory_limit = 20;
  const NamedSchedule start = best_of_families(request);
  const OptimalSchedule made = opt_pipe(request, kLimits);
  check_sound(made, request);
  CHECK(made.start == start.name);
  CHECK(made.cost < 0.95 * start.cost);
  const OptimalSchedule again = opt_pipe(request, kLimits);
  CHECK(again.schedule.ranks == made.schedule.ranks);
  CHECK(again.bound == made.bound);
  CHECK(again.nodes == made.nodes);
}

TEST_CASE("any placement of the families, never worse, whatever the limit of nodes") {
  for (const int32_t virtual_stages : {1, 2}) {
    for (const int64_t nodes : {0, 20}) {
      INFO(virtual_stages << " virtual stages, " << nodes << " nodes");
      ScheduleRequest request;
      request.ranks = 2;
      request.virtual_stages = virtual_stages;
      request.microbatches = 4;
      request.costs =
          uniform_costs(virtual_stages, {.forward = 1, .input = 1.3, .weight = 0.8},
                        {.activations = 4, .for_weights = 2, .checkpoint = 0, .offloaded = 4}, 0.1);
      request.memory_limit = 6;
      const OptimalSchedule made = opt_pipe(request, {.nodes = nodes, .seconds = 1e6});
      check_sound(made, request);
      CHECK(made.stop.has_value());
    }
  }
}

// A window of the whole schedule has the optimum of all orders, up to the weight of early starts.
TEST_CASE("a window of everything has the optimum of all orders") {
  const auto [ranks, microbatches, seeds] =
      GENERATE(std::make_tuple(2, 3, 12U), std::make_tuple(3, 2, 12U), std::make_tuple(2, 4, 2U));
  for (unsigned seed = 21; seed < 21 + seeds; ++seed) {
    INFO(ranks << " ranks, " << microbatches << " microbatches, seed " << seed);
    const ScheduleRequest request = random_request(seed, ranks, microbatches);
    const Schedule start = make_schedule(schedule_family("zb-h1"), request);
    if (first_fault(start, request.costs, request.memory_limit)) continue;
    const FixedOrder order(start, request.costs, request.memory_limit);
    const double least = least_of_all(request, false);
    const auto model = order.model_of({0, order.makespan(), 0, ranks});
    if (!model) {
      CHECK(order.cost() == Approx(least));
      continue;
    }
    const MilpSolution solution = solve(model->milp, kLimits, model->start);
    REQUIRE(solution.stop == Stop::optimal);
    const Schedule made = order.schedule_of(*model, solution.values);
    CHECK(!first_fault(made, request.costs, request.memory_limit));
    const FixedOrder after(made, request.costs, request.memory_limit);
    // A span is in units of an action's duration; all starts together weigh a hundredth of one.
    const double slack = 0.02 * order.cost() * ranks / order.items() * microbatches;
    CHECK(after.cost() <= least + slack);
    CHECK(after.cost() >= least * (1 - 1e-9));
  }
}

TEST_CASE("a window keeps what is outside, and knows the present order") {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    std::mt19937 random(seed);
    ScheduleRequest request = random_request(seed, 4, 8);
    request.memory_limit = 0;
    for (StageMemory& m : request.costs.memory) m.offloaded = m.activations;
    Schedule start = make_schedule(schedule_family("zb-h2"), request);
    if (seed % 2 == 0) offload(start, 3, [](const Action&) { return true; });
    const ScheduleTiming before = simulate(start, request.costs);
    request.memory_limit = before.peak_memory();
    const FixedOrder order(start, request.costs, request.memory_limit);
    const double from = before.makespan * std::uniform_real_distribution(0.0, 0.8)(random);
    const FixedOrder::Window window = {from, from + before.makespan / 5, 1, 3};
    const auto model = order.model_of(window);
    if (!model) continue;
    std::vector<double> values(model->milp.columns.size(), 0);
    for (const Term& choice : model->start) values[choice.column] = choice.factor;
    CHECK(order.schedule_of(*model, values).ranks == start.ranks);
    // The present order is a solution.
    Milp fixed = model->milp;
    for (const Term& choice : model->start) {
      fixed.columns[choice.column].lower = fixed.columns[choice.column].upper = choice.factor;
    }
    CHECK(solve(fixed, kLimits).stop == Stop::optimal);
    const MilpSolution solution = solve(model->milp, kLimits, model->start);
    REQUIRE(!solution.values.empty());
    const Schedule made = order.schedule_of(*model, solution.values);
    CHECK(made.ranks[0] == start.ranks[0]);
    CHECK(made.ranks[3] == start.ranks[3]);
    for (size_t rank = 1; rank < 3; ++rank) {
      CHECK(std::is_permutation(made.ranks[rank].begin(), made.ranks[rank].end(),
                                start.ranks[rank].begin(), start.ranks[rank].end()));
    }
  }
}

TEST_CASE("what is too large to be solved whole is optimised in windows, the same again") {
  ScheduleRequest request;
  request.ranks = 6;
  request.microbatches = 40;
  request.memory_limit = 4;
  constexpr SolverLimits kFew = {.nodes = 300, .seconds = 1e6};
  const NamedSchedule start = best_of_families(request);
  const OptimalSchedule made = opt_pipe(request, kFew);
  check_sound(made, request);
  CHECK(made.binaries == 0);
  CHECK(made.stop != Stop::optimal);
  CHECK(made.cost < 0.85 * start.cost);
  CHECK(made.bound >= least_span(made.schedule, request.costs, request.memory_limit));
  const OptimalSchedule again = opt_pipe(request, kFew);
  CHECK(again.schedule.ranks == made.schedule.ranks);
  CHECK(again.nodes == made.nodes);
}

TEST_CASE("any family's schedule stays within memory and never gets slower, in windows too") {
  int faster = 0;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    const auto number = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    ScheduleRequest request;
    request.ranks = number(2, 10);
    request.virtual_stages = number(1, 2);
    request.microbatches = request.ranks * number(1, 3);
    StageTimes times{.forward = number(5, 15) / 10.0,
                     .input = number(5, 15) / 10.0,
                     .weight = number(0, 15) / 10.0};
    times.offload = times.reload = number(1, 30) / 10.0;
    request.costs = uniform_costs(
        request.virtual_stages, times,
        {.activations = 8, .for_weights = 2 * number(0, 4), .checkpoint = 0, .offloaded = 4}, 0);
    for (int32_t i = 1; i <= request.ranks * request.virtual_stages; ++i) {
      request.costs.messages.push_back(number(0, 4) / 10.0);
    }
    request.memory_limit = number(0, 3) == 0 ? 0 : 8 * number(2, 2 * request.ranks);
    INFO("seed " << seed);
    for (const char* name : {"1f1b", "zb-h1", "zb-auto", "interleaved-zb", "v-adaptive"}) {
      const ScheduleFamily& family = schedule_family(name);
      if (!takes_virtual_stages(family, request.virtual_stages)) continue;
      NamedSchedule start{name, {}, 0};
      try {
        start.schedule = make_schedule(family, request);
      } catch (const Error& e) {
        continue;  // the family does not take the memory
      }
      if (seed % 3 == 0) offload(start.schedule, 3, [](const Action&) { return true; });
      if (first_fault(start.schedule, request.costs, request.memory_limit)) continue;
      const OptimalSchedule made =
          reorder(start, request.costs, request.memory_limit, {.nodes = 12, .seconds = 1e6});
      check_sound(made, request);
      faster += made.cost < made.start_cost * (1 - 1e-6);
    }
  }
  CHECK(faster > 5);
}

TEST_CASE("no schedule is faster than the least span of its work and memory") {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    const ScheduleRequest request = random_request(seed, 2, 3);
    Schedule any;
    try {
      any = best_of_families(request).schedule;
    } catch (const Error& e) {
      continue;  // none fits
    }
    CHECK(least_span(any, request.costs, request.memory_limit) <=
          least_of_all(request, false) * (1 + 1e-9));
  }
}

TEST_CASE("a schedule without a bubble is proven the best, whatever its size") {
  ScheduleRequest request;
  request.ranks = 16;
  request.microbatches = 128;
  const OptimalSchedule made = opt_pipe(request, kLimits);
  CHECK(made.stop == Stop::optimal);
  CHECK(made.cost == made.start_cost);
  CHECK(made.nodes == 0);
}

TEST_CASE("what cannot be ordered is refused in one line") {
  ScheduleRequest request;
  request.ranks = 4;
  request.microbatches = 8;
  const Schedule both_ends = make_schedule(schedule_family("dualpipe"), request);
  CHECK(!can_be_reordered(both_ends));
  CHECK_THROWS_WITH(reorder({"dualpipe", both_ends}, request.costs, 0, kLimits),
                    Catch::Matchers::Contains("the order of dualpipe cannot be optimised"));
  ScheduleRequest apart = request;
  apart.virtual_stages = schedule_family("helixpipe").least_virtual_stages;
  apart.costs = attention_apart_costs(apart.ranks, apart.virtual_stages, {}, {}, 0, 0.5);
  CHECK(!can_be_reordered(make_schedule(schedule_family("helixpipe"), apart)));
  const Schedule gpipe = make_schedule(schedule_family("gpipe"), request);
  CHECK_THROWS_WITH(reorder({"gpipe", gpipe}, request.costs, 4, kLimits),
                    Catch::Matchers::Contains("rank 0 holds 8 at 0F7"));
  request.costs.memory = {{.activations = 8, .for_weights = 4}};
  request.memory_limit = 7;
  try {
    opt_pipe(request, kLimits);
    FAIL("it does not fit");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::no_fit);
  }
}

TEST_CASE("a start whose backward may not be split is a start all the same") {
  ScheduleRequest request;
  request.ranks = 2;
  request.microbatches = 3;
  // W holds more than F has saved.
  request.costs = uniform_costs(1, {}, {.activations = 10, .for_weights = 20}, 0);
  const Schedule start = make_schedule(schedule_family("1f1b"), request);
  const ScheduleTiming timing = simulate(start, request.costs);
  const OptimalSchedule order =
      reorder({"1f1b", start, timing.cost}, request.costs, timing.peak_memory(), kLimits);
  CHECK(order.cost <= timing.cost);
  CHECK(!first_fault(order.schedule, request.costs, timing.peak_memory()));
}

}  // namespace longspan
