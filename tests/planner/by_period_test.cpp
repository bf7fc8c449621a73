// The error of a step's cost by its period against that of its whole program, and of its number of
// ops, on random plans of many chunks.
#include "planner/evaluate/by_period.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "planner/evaluate/sampled_simulation.h"
#include "planner/program/layout.h"
#include "planner/program/ops_estimate.h"
#include "planner/program/outline.h"
#include "planner/simulate/simulate.h"
#include "tests/length.h"
#include "tests/planner/random_plan.h"
#include "tests/planner/random_strategy.h"

namespace longspan {
namespace {

// A random plan whose keys and values stream, or whose queries do, over a number of chunks.
testing::RandomPlan plan_of_many_chunks(uint64_t seed) {
  for (;; seed += 1000) {
    testing::RandomPlan plan = testing::random_plan(seed);
    Strategy& s = plan.request.strategy;
    const bool pairs = s.kv == Tier::host || s.backward_order == BackwardOrder::kv_outer;
    if (!pairs || s.parallel.ring > 1 || s.head_groups > 1) continue;
    if (plan.request.sequence == s.chunk_tokens) continue;
    if (plan.request.model.positions == Positions::learned) continue;
    const int64_t chunks = 128 + 8 * static_cast<int64_t>(seed % 8);
    plan.request.model.layers = 4;
    const int64_t length = chunks * s.chunk_tokens;
    if (s.block_tokens == plan.request.sequence) s.block_tokens = length;
    plan.request.sequence = length;
    return plan;
  }
}

}  // namespace

TEST_CASE("ops are counted without lowering") {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    INFO("seed " << seed);
    StepRequest request = testing::random_request(seed);
    request.boundary = {seed % 3 != 0, seed % 5 != 0};
    request.model.attention = seed % 7 != 0;
    if (seed % 2 == 0) request = testing::balanced(request);
    CHECK(ops_estimate(request) == arenas_of(request).ops);
    if (seed % 3 != 0 && seed % 5 != 0) {
      const StepRequest runs = testing::in_runs(request);
      CHECK(ops_estimate(runs) == arenas_of(runs).ops);
    }
    if (request.model.attention) {
      const StepRequest windows = testing::in_windows(request, seed);
      CHECK(ops_estimate(windows) == arenas_of(windows).ops);
      const StepRequest spans = testing::in_spans(request, seed);
      CHECK(ops_estimate(spans) == arenas_of(spans).ops);
      const StepRequest packed = testing::in_documents(request, seed);
      CHECK(ops_estimate(packed) == arenas_of(packed).ops);
    }
    StepRequest sliced = testing::sliced_request(seed);
    sliced.model.attention = seed % 7 != 0;
    if (seed % 4 == 0) sliced = testing::in_documents(sliced, seed);
    if (seed % 2 == 0) sliced = testing::balanced(sliced);
    CHECK(ops_estimate(sliced) == arenas_of(sliced).ops);
    const StepRequest latent = testing::with_latent_attention(request, seed);
    CHECK(ops_estimate(latent) == arenas_of(latent).ops);
    StepRequest forward = testing::forward_request(seed);
    if (seed % 3 != 0) forward.boundary = request.boundary;
    forward.model.attention = seed % 7 != 0;
    if (seed % 2 == 0) forward = testing::balanced(forward);
    CHECK(ops_estimate(forward) == arenas_of(forward).ops);
    if (forward.boundary == StageBoundary{} && forward.strategy.parallel.pipeline.slices == 1) {
      const StepRequest runs = testing::in_runs(forward);
      CHECK(ops_estimate(runs) == arenas_of(runs).ops);
    }
    const StepRequest forward_ranks = testing::forward_plan(seed).request;
    CHECK(ops_estimate(forward_ranks) == arenas_of(forward_ranks).ops);
    StepRequest ranks = testing::random_plan(seed).request;
    ranks.rank = ranks.strategy.parallel.ranks() - 1;
    CHECK(ops_estimate(ranks) == arenas_of(ranks).ops);
    StepRequest experts = testing::random_plan_with_experts(seed).request;
    if (!experts.strategy.parallel.has_pipeline()) {
      experts = testing::balanced(experts);
      CHECK(ops_estimate(experts) == arenas_of(experts).ops);
    }
  }
}

TEST_CASE("an outline has the arenas and the time of the list") {
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    INFO("seed " << seed);
    const testing::RandomPlan plan = seed > 70   ? testing::forward_plan(seed)
                                     : seed > 60 ? testing::sliced_plan(seed)
                                                 : testing::random_plan(seed);
    const CostModel cost(plan.hw, plan.request.dtype);
    const Program program = build_program(plan.request);
    const Layout layout = lay_out(program);
    const Timeline timeline =
        simulate(program, layout, cost.durations(program), cost.interference(), true);
    const Outline outline = outline_of(plan.request);
    const StepSeconds seconds =
        simulate(outline, cost.durations(outline.program), cost.interference());
    CHECK(outline.arena_bytes == layout.arena_bytes);
    CHECK(outline.live_bytes == layout.live_bytes);
    CHECK(seconds.step == timeline.step_seconds);
    CHECK(seconds.forward == timeline.spans[first_backward_op(program)].start);
  }
}

TEST_CASE("random plans of many chunks cost by their period what they cost as a whole") {
  // Where transfers from before a loop still run while it is measured, the part left out is assumed
  // to be slowed down throughout: rarely, that is more than 1 %.
  int within = 0;
  int64_t whole_ops = 0, left_ops = 0;
  const int64_t plans = testing::cases(15, 60);
  for (int64_t seed = 1; seed <= plans; ++seed) {
    INFO("seed " << seed);
    const testing::RandomPlan plan = plan_of_many_chunks(static_cast<uint64_t>(seed));
    const CostModel cost(plan.hw, plan.request.dtype);
    const Outline whole = outline_of(plan.request);
    const StepSeconds seconds = simulate(whole, cost.durations(whole.program), cost.interference());
    const Evaluation by_period = evaluate_by_period(plan.request, cost);
    CHECK(by_period.extrapolated);
    const double off = std::abs(by_period.step_seconds / seconds.step - 1);
    CHECK(off < 0.1);
    within += off < 0.01;
    CHECK(by_period.peak_bytes[0] == whole.arena_bytes[0]);
    for (int tier = 1; tier < kTierCount; ++tier) {
      CHECK(static_cast<double>(by_period.peak_bytes[tier]) >=
            0.99 * static_cast<double>(whole.arena_bytes[tier]));
      CHECK(static_cast<double>(by_period.peak_bytes[tier]) <=
            1.01 * static_cast<double>(whole.arena_bytes[tier]));
    }
    CHECK(arenas_by_period(plan.request).bytes == by_period.peak_bytes);
    whole_ops += whole.ops;
    left_ops += outline_without_repeats(plan.request).ops;
  }
  CHECK(within >= plans * 29 / 30);
  CHECK(left_ops < whole_ops * 3 / 4);
}

TEST_CASE("many slices that pass again cost by their period what they cost as a whole") {
  int within = 0;
  const int64_t plans = testing::cases(10, 40);
  for (int64_t seed = 1; seed <= plans; ++seed) {
    INFO("seed " << seed);
    testing::RandomPlan plan = testing::sliced_plan(static_cast<uint64_t>(seed));
    StepRequest& request = plan.request;
    int64_t& slices = request.strategy.parallel.pipeline.slices;
    const int64_t more = 48 + 4 * (seed % 5);
    request.sequence = request.sequence / slices * more;
    request.model = fit_to_length(request.model, request.sequence);
    request.model.layers = 4;
    slices = more;
    const CostModel cost(plan.hw, request.dtype);
    const Outline whole = outline_of(request);
    const StepSeconds seconds = simulate(whole, cost.durations(whole.program), cost.interference());
    const Evaluation by_period = evaluate_by_period(request, cost);
    const double off = std::abs(by_period.step_seconds / seconds.step - 1);
    CHECK(off < 0.1);
    within += off < 0.01;
    CHECK(by_period.peak_bytes[0] == whole.arena_bytes[0]);
    const std::array<int64_t, kTierCount> sampled = SampledSimulation(cost).peak_bytes(request);
    for (int tier = 0; tier < kTierCount; ++tier) {
      const auto live = static_cast<double>(whole.live_bytes[tier]);
      CHECK(static_cast<double>(sampled[tier]) >= 0.97 * live);
      CHECK(static_cast<double>(sampled[tier]) <= 1.03 * live);
    }
  }
  CHECK(within >= plans * 9 / 10);
}

}  // namespace longspan
