// Splits of layers against all possible splits; splits, placements and orders together.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/error.h"
#include "planner/schedule/check.h"
#include "planner/schedule/solver/adaptis.h"
#include "planner/schedule/timing.h"

namespace longspan {
namespace {

// Time is no limit in tests: the answer may not depend on the machine.
constexpr SolverLimits kLimits{.nodes = 60, .seconds = 1e6};

std::vector<LayerCosts> random_layers(unsigned seed, int count) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> number(1, 9);
  std::vector<LayerCosts> layers;
  for (int i = 0; i < count; ++i) {
    layers.push_back({.forward = number(random) / 10.0,
                      .input = number(random) / 10.0,
                      .weight = number(random) / 10.0,
                      .activations = number(random),
                      .for_weights = 1,
                      .resident = number(random)});
  }
  return layers;
}

void for_all_cuts(int64_t layers, int32_t stages,
                  const std::function<void(const std::vector<int64_t>&)>& look) {
  std::vector<int64_t> ends;
  const auto extend = [&](const auto& self, int64_t from) -> void {
    if (static_cast<int32_t>(ends.size()) == stages - 1) {
      ends.push_back(layers);
      look(ends);
      ends.pop_back();
      return;
    }
    for (int64_t end = from + 1; end < layers; ++end) {
      ends.push_back(end);
      self(self, end);
      ends.pop_back();
    }
  };
  extend(extend, 0);
}

// The slowest stage's time; infinity where a stage holds too much.
double slowest(const std::vector<LayerCosts>& layers, const std::vector<int64_t>& ends,
               int64_t limit, const std::vector<int64_t>& in_flight) {
  double most = 0;
  for (size_t k = 0; k < ends.size(); ++k) {
    double time = 0;
    int64_t held = 0;
    for (int64_t i = k > 0 ? ends[k - 1] : 0; i < ends[k]; ++i) {
      time += layers[i].forward + layers[i].input + layers[i].weight;
      held += layers[i].resident + in_flight[k] * layers[i].activations;
    }
    if (limit > 0 && held > limit) return std::numeric_limits<double>::infinity();
    most = std::max(most, time);
  }
  return most;
}

}  // namespace

TEST_CASE("no cut of the layers has a faster slowest stage") {
  int none = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    const std::vector<LayerCosts> layers = random_layers(seed, 9);
    const int32_t stages = 2 + static_cast<int32_t>(seed % 3);
    const int64_t limit = seed % 2 == 0 ? 0 : 30 + static_cast<int64_t>(seed);
    std::vector<int64_t> in_flight;
    for (int32_t k = 0; k < stages; ++k) in_flight.push_back(stages - k);
    double least = std::numeric_limits<double>::infinity();
    for_all_cuts(9, stages, [&](const std::vector<int64_t>& ends) {
      least = std::min(least, slowest(layers, ends, limit, in_flight));
    });
    const std::vector<int64_t> ends = cut_layers(layers, stages, limit, in_flight);
    if (ends.empty()) {
      CHECK(std::isinf(least));
      ++none;
    } else {
      CHECK(slowest(layers, ends, limit, in_flight) == Approx(least));
    }
  }
  CHECK((none > 0 && none < 20));
}

TEST_CASE("stages cost what their layers do") {
  const std::vector<LayerCosts> layers = random_layers(3, 7);
  const ScheduleCosts costs = costs_of_stages(layers, {2, 3, 7}, 0.25);
  CHECK(costs.times[0].forward == Approx(layers[0].forward + layers[1].forward));
  CHECK(costs.times[1].weight == layers[2].weight);
  CHECK(costs.memory[2].activations == layers[3].activations + layers[4].activations +
                                           layers[5].activations + layers[6].activations);
  CHECK(costs.communication == 0.25);
  CHECK(resident_of_stages(layers, {2, 3, 7})[0] == layers[0].resident + layers[1].resident);
}

TEST_CASE("a head that costs several layers is worth an uneven cut") {
  // Eight layers and a head that costs three of them. The best of all splits, by trying them.
  std::vector<LayerCosts> layers(8);
  layers.push_back({.forward = 3, .input = 3, .weight = 3});
  AdaptisRequest request;
  request.layers = layers;
  request.ranks = 3;
  request.microbatches = 6;
  request.limits = kLimits;
  const AdaptisPlan plan = adaptis(request);
  CHECK(plan.schedule.cost < plan.even_cost);
  CHECK(!first_fault(plan.schedule.schedule, plan.costs));
  CHECK(simulate(plan.schedule.schedule, plan.costs).cost == plan.schedule.cost);
  // No order of any cut is faster than its slowest rank's work; eleven layers over three ranks are
  // four for one of them.
  CHECK(plan.schedule.cost >= 6 * 4 * 3);
  CHECK(plan.schedule.cost <= 6 * 4 * 3 * 1.02);
}

TEST_CASE("random layers: sound, within memory, never worse than an even cut, and the same again") {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    INFO("seed " << seed);
    AdaptisRequest request;
    request.layers = random_layers(seed, 8);
    request.ranks = 2 + static_cast<int32_t>(seed % 2);
    request.microbatches = 4;
    request.communication = 0.1;
    request.memory_limit = seed % 3 == 0 ? 0 : 90;
    request.limits = kLimits;
    const AdaptisPlan plan = adaptis(request);
    if (plan.even_cost > 0) CHECK(plan.schedule.cost <= plan.even_cost);
    CHECK(plan.schedule.cost <= plan.schedule.start_cost);
    CHECK(plan.ends.back() == 8);
    CHECK(!first_fault(plan.schedule.schedule, plan.costs, plan.memory_limit));
    // The memory limit minus the resident memory is left for activations.
    const ScheduleTiming timing = simulate(plan.schedule.schedule, plan.costs);
    const std::vector<int64_t> resident = resident_of_stages(request.layers, plan.ends);
    for (size_t rank = 0; request.memory_limit > 0 && rank < timing.ranks.size(); ++rank) {
      int64_t held = timing.ranks[rank].peak_memory;
      std::vector<bool> seen(resident.size(), false);
      for (const Action& a : plan.schedule.schedule.ranks[rank]) {
        if (!seen[a.stage]) held += resident[a.stage];
        seen[a.stage] = true;
      }
      CHECK(held <= request.memory_limit);
    }
    const AdaptisPlan again = adaptis(request);
    CHECK(again.ends == plan.ends);
    CHECK(again.schedule.schedule.ranks == plan.schedule.schedule.ranks);
  }
}

// The test is about the clock, so the time is over from the start: the first schedule ends the
// search, and no other family is asked.
TEST_CASE("the search over cuts and families keeps to the time limit") {
  AdaptisRequest request{.layers = random_layers(7, 12), .ranks = 3, .microbatches = 6};
  request.limits = kLimits;
  const AdaptisPlan searched = adaptis(request);
  request.limits.seconds = 0;
  const AdaptisPlan first = adaptis(request);
  CHECK(first.family == "gpipe");
  CHECK(first.virtual_stages == 1);
  CHECK(first.schedule.start_cost > searched.schedule.start_cost);
  CHECK_FALSE(first_fault(first.schedule.schedule, first.costs));
}

TEST_CASE("a schedule in which no rank waits ends the search and is called optimal") {
  AdaptisRequest request{.layers = std::vector<LayerCosts>(32), .ranks = 8, .microbatches = 32};
  request.limits = {.nodes = 0, .seconds = 600};
  const AdaptisPlan plan = adaptis(request);
  CHECK(plan.schedule.cost == 3 * 4 * 32);  // a rank's work: F, I and W of 4 layers
  CHECK(plan.schedule.bound == plan.schedule.cost);
  CHECK(plan.schedule.stop == Stop::optimal);
  CHECK(plan.schedule.nodes == 0);
}

TEST_CASE("what cannot be cut is refused") {
  AdaptisRequest request;
  request.layers = random_layers(1, 3);
  request.ranks = 4;
  CHECK_THROWS_WITH(adaptis(request),
                    "3 layers over 4 ranks; expected a layer for each rank or more");
  request.ranks = 2;
  request.memory_limit = 1;
  try {
    adaptis(request);
    FAIL("it does not fit");
  } catch (const Error& e) {
    CHECK(e.kind() == ErrorKind::no_fit);
  }
}

}  // namespace longspan
