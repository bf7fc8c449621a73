// The error of the sampled simulation against the full simulation, on random plans of every kind.
#include "planner/evaluate/sampled_simulation.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "planner/program/layout.h"
#include "planner/simulate/simulate.h"
#include "planner/strategy/validity.h"
#include "tests/planner/random_plan.h"

namespace longspan {

namespace {

// Expects the time of each plan within 1 %, and of nearly all the memory too.
void check_samples(testing::RandomPlan (*plan_of)(uint64_t seed), uint64_t plans) {
  int peaks = 0, tiers = 0;
  for (uint64_t seed = 1; seed <= plans; ++seed) {
    INFO("seed " << seed);
    const testing::RandomPlan plan = plan_of(seed);
    const CostModel cost(plan.hw, plan.request.dtype);
    const Program program = build_program(plan.request);
    const Layout layout = lay_out(program);
    const double seconds =
        simulate(program, layout, cost.durations(program), cost.interference(), false).step_seconds;
    const Evaluation quick = SampledSimulation(cost).evaluate(plan.request);
    const double off = std::abs(quick.step_seconds / seconds - 1);
    CHECK(off < 0.01);
    for (int tier = 0; tier < kTierCount; ++tier) {
      const auto live = static_cast<double>(layout.live_bytes[tier]);
      if (live == 0) continue;
      ++tiers;
      peaks += std::abs(static_cast<double>(quick.peak_bytes[tier]) / live - 1) < 0.01;
    }
  }
  CHECK(peaks >= 0.97 * tiers);
}

}  // namespace

TEST_CASE("random plans take what the sampled simulation says they do, within 1 %") {
  check_samples(testing::random_plan, 200);
}

TEST_CASE("slices that pass again take what the sampled simulation says") {
  check_samples(testing::sliced_plan, 80);
}

TEST_CASE("forwards alone take what the sampled simulation says") {
  check_samples(testing::forward_plan, 80);
}

TEST_CASE("plans that save the first layers in another way take what the sampled simulation says") {
  constexpr int kPlans = 120;
  int plans = 0, near = 0, peaks = 0, tiers = 0;
  for (uint64_t seed = 1; seed <= kPlans; ++seed) {
    INFO("seed " << seed);
    testing::RandomPlan plan = testing::random_plan(seed);
    StepRequest& request = plan.request;
    request.model.window = 0;  // layers differ by what they save alone
    const int64_t layers = 40 + static_cast<int64_t>(seed % 60);
    request.model.layers = layers;
    if (request.microbatches > 1) request.microbatches += static_cast<int64_t>(seed % 4);
    const auto first = [&](uint64_t n) {
      return static_cast<double>(1 + static_cast<int64_t>(n) % (layers - 1)) /
             static_cast<double>(layers);
    };
    Strategy& s = request.strategy;
    s.layer_input = {Saved::host, first(seed * 7)};
    s.qkv = {Saved::recompute, 1};
    s.attention_out = {Saved::host, seed % 3 == 0 ? first(seed * 11) : 1.0};
    if (!is_valid(s, request.model, request.sequence)) continue;
    const CostModel cost(plan.hw, request.dtype);
    const Program program = build_program(request);
    const Layout layout = lay_out(program);
    const double seconds =
        simulate(program, layout, cost.durations(program), cost.interference(), false).step_seconds;
    const Evaluation quick = SampledSimulation(cost).evaluate(request);
    const double off = std::abs(quick.step_seconds / seconds - 1);
    CHECK(off < 0.08);
    ++plans;
    near += off < 0.01;
    for (int tier = 0; tier < kTierCount; ++tier) {
      const auto live = static_cast<double>(layout.live_bytes[tier]);
      if (live == 0) continue;
      ++tiers;
      peaks += std::abs(static_cast<double>(quick.peak_bytes[tier]) / live - 1) < 0.01;
    }
  }
  CHECK(plans > kPlans / 3);
  CHECK(near >= 0.88 * plans);
  CHECK(peaks >= 0.97 * tiers);
}

}  // namespace longspan
