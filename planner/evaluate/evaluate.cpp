#include "planner/evaluate/evaluate.h"

#include <algorithm>

#include "planner/evaluate/by_period.h"
#include "planner/pipeline/pipeline_step.h"
#include "planner/program/layer_kinds.h"
#include "planner/program/layout.h"
#include "planner/program/ops_estimate.h"
#include "planner/program/outline.h"
#include "planner/program/ring_positions.h"
#include "planner/simulate/simulate.h"

namespace longspan {
namespace {

using TierBytes = std::array<int64_t, kTierCount>;

TierBytes with_other_positions(StepRequest request, int64_t ops, TierBytes peak,
                               const TierBytes* limits = nullptr) {
  for (const int64_t rank : ranks_to_lay_out(request.strategy.parallel, ops)) {
    if (rank == 0) continue;
    if (limits != nullptr && !fits_within(peak, *limits)) break;
    request.rank = rank;
    const TierBytes bytes =
        ops > kMostListedOps ? arenas_by_period(request).bytes : arenas_of(request, limits).bytes;
    for (int tier = 0; tier < kTierCount; ++tier) peak[tier] = std::max(peak[tier], bytes[tier]);
  }
  return peak;
}

Evaluation evaluate_listed(const StepRequest& request, const CostModel& cost) {
  const Outline outline = outline_of(request);
  const StepSeconds seconds =
      simulate(outline, cost.durations(outline.program), cost.interference());
  return {seconds.step, outline.arena_bytes, seconds.forward, seconds.forward_busy, seconds.busy};
}

StepRequest of_first_rank(StepRequest request) {
  request.rank = 0;
  return request;
}

// The first rank's time. Bytes stay 0 if the program is too large to list.
Evaluation time_first(const StepRequest& request, const CostModel& cost) {
  const StepRequest first = of_first_rank(request);
  return ops_estimate(first) > kMostListedOps ? time_by_period(first, cost)
                                              : evaluate_listed(first, cost);
}

}  // namespace

bool is_priced_by_kinds(const StepRequest& request) {
  if (request.strategy.parallel.has_pipeline()) return true;
  return !request.model.uniform() &&
         (!divides_shares(request.model, request.strategy, request.sequence) ||
          ops_estimate(request) > kMostListedOps);
}

Evaluation evaluate(const StepRequest& request, const CostModel& cost) {
  if (is_priced_by_kinds(request)) {
    const auto evaluate_stage = [&](const StepRequest& stage) { return evaluate(stage, cost); };
    return evaluate_pipeline(request, cost, evaluate_stage, RankMemory::laid_out).whole;
  }
  const StepRequest first = of_first_rank(request);
  const int64_t ops = ops_estimate(first);
  Evaluation evaluation =
      ops > kMostListedOps ? evaluate_by_period(first, cost) : evaluate_listed(first, cost);
  evaluation.peak_bytes = with_other_positions(request, ops, evaluation.peak_bytes);
  return evaluation;
}

double exact_seconds(const StepRequest& request, const CostModel& cost) {
  if (!is_priced_by_kinds(request)) return time_first(request, cost).step_seconds;
  const auto time_stage = [&](const StepRequest& stage) { return time_first(stage, cost); };
  return evaluate_pipeline(request, cost, time_stage, RankMemory::summed).whole.step_seconds;
}

Arenas exact_arenas(const StepRequest& request, const TierBytes* limits) {
  const StepRequest first = of_first_rank(request);
  const int64_t ops = ops_estimate(first);
  Arenas arenas = ops > kMostListedOps ? arenas_by_period(first) : arenas_of(first, limits);
  arenas.bytes = with_other_positions(request, ops, arenas.bytes, limits);
  return arenas;
}

TierBytes exact_peak_bytes(const StepRequest& request) { return exact_arenas(request).bytes; }

TierBytes peak_of_mesh(const StepRequest& request, const TierBytes& of_first) {
  return with_other_positions(request, ops_estimate(of_first_rank(request)), of_first);
}

int64_t ops_of_all_positions(const StepRequest& request) {
  const int64_t ops = ops_estimate(request);
  const int64_t laid_out = ops > kMostListedOps ? ops_without_repeats(request) : ops;
  return laid_out * static_cast<int64_t>(ranks_to_lay_out(request.strategy.parallel, ops).size());
}

}  // namespace longspan
