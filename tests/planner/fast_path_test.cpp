// How close the fast path comes to the full simulation, on random plans of every kind.
#include "planner/evaluate/fast_path.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "planner/program/layout.h"
#include "planner/simulate/simulate.h"
#include "tests/planner/random_plan.h"

namespace longspan {

TEST_CASE("random plans take what the fast path says they do, within 1 %") {
  constexpr int kPlans = 200;
  int peaks = 0, tiers = 0;
  for (uint64_t seed = 1; seed <= kPlans; ++seed) {
    INFO("seed " << seed);
    const testing::RandomPlan plan = testing::random_plan(seed);
    const CostModel cost(plan.hw, plan.request.dtype);
    const Program program = build_program(plan.request);
    const Layout layout = lay_out(program);
    const double seconds =
        simulate(program, layout, cost.durations(program), cost.interference(), false).step_seconds;
    const Evaluation quick = FastPath(cost).evaluate(plan.request);
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

}  // namespace longspan
