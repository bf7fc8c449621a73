// The front holds no plan that another dominates, and a number of devices is called the fewest only
// if fewer cannot do it.
#include <catch2/catch.hpp>
#include <random>

#include "base/error.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/evaluate/bounds.h"
#include "planner/evaluate/evaluate.h"
#include "planner/search/sweep.h"
#include "tests/length.h"
#include "tests/planner/corner_strategies.h"
#include "tests/planner/small_machine.h"

namespace longspan {
namespace {

// Domination by its definition.
bool beats(const Costs& a, const Costs& b) {
  bool better = false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] > b[i]) return false;
    better |= a[i] < b[i];
  }
  return better;
}

bool fits(const Plan& plan, const Strategy& strategy) {
  StepRequest request = step_request(plan);
  request.strategy = strategy;
  const auto bytes = exact_peak_bytes(request), limits = capacities(plan.hardware);
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (bytes[tier] > limits[tier]) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("the front is what the definition says, on random points") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Costs> rows(1 + random() % 60);
    for (Costs& row : rows) {
      for (int i = 0; i < 4; ++i) row.push_back(static_cast<double>(random() % 8));
    }
    const std::vector<size_t> front = non_dominated(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const bool beaten = std::any_of(rows.begin(), rows.end(),
                                      [&](const Costs& other) { return beats(other, rows[i]); });
      const auto on_front =
          std::count_if(front.begin(), front.end(), [&](size_t k) { return rows[k] == rows[i]; });
      CHECK(on_front == (beaten ? 0 : 1));
    }
    // With slack the result is a subset, and every missing plan is close to one in it.
    const std::vector<size_t> fewer = non_dominated(rows, 0.3);
    for (const size_t k : fewer) {
      CHECK(std::find(front.begin(), front.end(), k) != front.end());
    }
    for (const Costs& row : rows) {
      CHECK(std::any_of(fewer.begin(), fewer.end(), [&](size_t k) {
        return std::equal(row.begin(), row.end(), rows[k].begin(),
                          [](double own, double close) { return close <= 1.3 * own; });
      }));
    }
  }
}

TEST_CASE("jobs take divisors of a node, or whole nodes") {
  using Counts = std::vector<int64_t>;
  const HardwareProfile cluster = load_hardware("4x8xh100-80g");
  CHECK(device_counts(cluster, 32) == Counts{1, 2, 4, 8, 16, 24, 32});
  CHECK(device_counts(cluster, 23) == Counts{1, 2, 4, 8, 16});
  CHECK(device_counts(cluster, 3) == Counts{1, 2});
  CHECK(device_counts(load_hardware("6xa100-80g"), 6) == Counts{1, 2, 3, 6});
  CHECK_THROWS_WITH(device_counts(cluster, 33), Catch::Contains("32 devices"));
  CHECK_THROWS_WITH(device_counts(cluster, 0), Catch::Contains("got 0"));
  CHECK(doubling({1, 2, 4, 8, 16, 24, 32}) == Counts{1, 2, 4, 8, 16, 32});
  CHECK(doubling({1, 2, 4, 8, 16, 24}) == Counts{1, 2, 4, 8, 16, 24});
  CHECK(doubling({8}) == Counts{8});
}

TEST_CASE("a row above the line between two others is beaten by their mixture") {
  const std::vector<Costs> rows = {{1, 10}, {3, 2}, {2, 7}, {2, 5}};
  CHECK_FALSE(beaten_by_mixture(rows[0], rows));
  CHECK_FALSE(beaten_by_mixture(rows[1], rows));
  CHECK(beaten_by_mixture(rows[2], rows));  // half of each takes 2 and 6
  CHECK_FALSE(beaten_by_mixture(rows[3], rows));
}

TEST_CASE("a sweep takes the best of its answers, and its front has no beaten plan") {
  const ModelSpec model = testing::small_model();
  const HardwareProfile hw = testing::small_machine(2, 4, 24 * testing::kMiB, 400 * testing::kMiB);
  const std::vector<int64_t> lengths = {2048, 8192}, counts = {2, 8};
  const Sweep found = sweep(model, hw, lengths, counts, {});
  REQUIRE(found.answers.size() == 4);
  double fastest = 0;
  for (const Answer& answer : found.answers) {
    CHECK(answer.plan.has_value() != !answer.refusal.empty());
    if (!answer.plan) continue;
    CHECK(answer.plan->hardware.devices() == answer.devices);
    CHECK(answer.plan->strategy.parallel.ranks() == answer.devices);
    CHECK_NOTHROW(check_fits(*answer.plan, exact_peak_bytes(step_request(*answer.plan))));
    if (answer.sequence == 8192) {
      fastest = std::max(fastest, answer.plan->predicted.tokens_per_second);
    }
  }
  CHECK(found.best.sequence == 8192);
  CHECK(found.best.predicted.tokens_per_second == fastest);
  REQUIRE(found.front.size() >= 3);
  for (const FrontPoint& point : found.front) {
    INFO(point.because);
    CHECK_FALSE(point.because.empty());
    CHECK(point.plan.predicted == predict(point.plan));
    for (const FrontPoint& other : found.front) {
      CHECK_FALSE(beats(costs_of(other), costs_of(point)));
    }
    for (const Answer& answer : found.answers) {
      if (answer.plan)
        CHECK_FALSE(beats(costs_of({*answer.plan, answer.sequence}), costs_of(point)));
    }
  }
  const Sweep again = sweep(model, hw, {2048}, {2}, {});
  CHECK(again.answers[0].plan == found.answers[0].plan);
  CHECK_THAT(why_so_many(found), Catch::Contains("times the tokens/s"));
}

TEST_CASE("nothing of a small space beats the front") {
  const ModelSpec model = testing::small_model();
  // 40 MiB, and 5 for what attention's backward works in.
  const HardwareProfile hw = testing::small_machine(1, 1, 45 * testing::kMiB, 200 * testing::kMiB);
  const int64_t sequence = 4096;
  SweepOptions options;
  options.search.chunk_tokens = 1024;
  const Sweep found = sweep(model, hw, {sequence}, {1}, options);
  // All combinations of tiers of states and saved tensors, with the other knobs of the best plan
  // and with those that hold least.
  Plan plan = found.best;
  const testing::Shape shape{{}, sequence, 1024};
  std::vector<Strategy> all = {plan.strategy, testing::all_offloaded(shape)};
  for (const testing::Knob& knob : testing::knobs(model, shape, false)) {
    if (knob.name != "states" && knob.name != "layer_input" && knob.name != "mlp_inner" &&
        knob.name != "attention_out" && knob.name != "qkv") {
      continue;
    }
    std::vector<Strategy> more;
    for (const Strategy& s : all) {
      for (const auto& set : knob.values) set(more.emplace_back(s));
    }
    all = std::move(more);
  }
  REQUIRE(all.size() == 2 * 4 * 2 * 27);
  int fitting = 0;
  const CostModel cost(hw, plan.dtype);
  for (const Strategy& s : all) {
    plan.strategy = s;
    const Evaluation e = evaluate(step_request(plan), cost);
    if (!fits(plan, s)) continue;
    ++fitting;
    plan.predicted = prediction_of(plan, e.step_seconds, e.peak_bytes);
    // The sampled simulation, by which the search chose, is exact to about a percent.
    Costs costs = costs_of({plan, sequence});
    costs[0] *= 1.02;
    for (const FrontPoint& point : found.front) CHECK_FALSE(beats(costs, costs_of(point)));
    CHECK(found.best.predicted.step_seconds <= 1.02 * e.step_seconds);
  }
  CHECK(fitting > 10);
}

TEST_CASE("the fewest devices: a plan fits them, and nothing fits the next smaller count") {
  const ModelSpec model = testing::small_model();
  const int64_t sequence = 16384;
  const HardwareProfile hw = testing::small_machine(4, 2, 16 * testing::kMiB, 64 * testing::kMiB);
  const std::vector<int64_t> counts = device_counts(hw, 8);
  CHECK(counts == std::vector<int64_t>{1, 2, 4, 6, 8});
  const Sweep found = fewest_devices(model, hw, sequence, counts, {});
  const int64_t fewest = found.best.hardware.devices();
  REQUIRE(found.answers.size() > 1);  // otherwise the question is too easy
  CHECK(found.answers.back().devices == fewest);
  CHECK(fits(found.best, found.best.strategy));
  for (size_t i = 0; i + 1 < found.answers.size(); ++i) {
    const Answer& fewer = found.answers[i];
    CHECK(fewer.devices == counts[i]);
    CHECK_FALSE(fewer.plan);
    CAPTURE(fewer.devices, fewer.refusal);
    // By brute force: all candidates for least memory, in every mesh and chunk, laid out; where
    // chunks are many only those that bounds do not exclude.
    Plan plan = found.best;
    plan.hardware = with_devices(hw, fewer.devices);
    plan.sequence = sequence;  // the best may be padded
    for (const ParallelLayout& mesh : meshes(model, plan.hardware, {})) {
      for (const int64_t count : {1, 2, 4, 8, 16, 32, 64}) {
        if (count > 8 && !testing::whole_length()) break;
        const int64_t share = sequence / mesh.ring, chunk = share / count;
        if (sequence % mesh.ring != 0) continue;
        for (const Strategy& s :
             testing::min_memory_strategies(model, {mesh, share, chunk}, false)) {
          try {
            validate(s, model, sequence, "");
          } catch (const Error&) {
            continue;
          }
          StepRequest request = step_request(plan);
          request.strategy = s;
          if (count > 8 && least_bytes(request)[0] > capacities(plan.hardware)[0]) continue;
          if (count > 8 && least_bytes(request)[1] > capacities(plan.hardware)[1]) continue;
          CHECK_FALSE(fits(plan, s));
        }
      }
    }
  }
  CHECK_THROWS_WITH(
      fewest_devices(model, testing::small_machine(1, 1, 2 * testing::kMiB, 4 * testing::kMiB),
                     sequence, {1}, {}),
      Catch::Contains("short by"));
}

TEST_CASE("what is fixed holds for every number of devices") {
  const ModelSpec model = testing::small_model();
  SweepOptions options;
  options.search.parallel.ulysses = 4;
  const Sweep found =
      sweep(model, testing::small_machine(1, 8, 256 * testing::kMiB, 4096 * testing::kMiB), {4096},
            {1, 4, 8}, options);
  CHECK_THAT(found.answers[0].refusal, Catch::Contains("ulysses 4"));
  CHECK(found.answers[1].plan->strategy.parallel.ulysses == 4);
  CHECK(found.answers[2].plan->strategy.parallel.ulysses == 4);
  options.strategy = "no-such";
  CHECK_THROWS_WITH(
      sweep(model, testing::small_machine(1, 8, 256 * testing::kMiB, 4096 * testing::kMiB), {4096},
            {4, 8}, options),
      Catch::Contains("no-such"));
}

}  // namespace longspan
