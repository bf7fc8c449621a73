#include "planner/evaluate/judge.h"

#include <algorithm>

namespace longspan {
StepRequest request_of(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                       int64_t micro_batches) {
  StepRequest request;
  request.model = fit_positions(model, sequence);
  request.sequence = sequence;
  request.micro_batches = micro_batches;
  request.dtype = default_dtype(hw);
  return request;
}

Score score_of(const Strategy& strategy, double overflow, const Evaluation& e) {
  const auto replicas = static_cast<double>(strategy.parallel.data);
  return {overflow, e.step_seconds, e.step_seconds / replicas, e.peak_bytes};
}

Plan plan_of(const StepRequest& request, const HardwareProfile& hw) {
  Plan plan;
  plan.model = request.model;
  plan.hardware = hw;
  plan.sequence = request.sequence;
  plan.micro_batches = request.micro_batches;
  plan.dtype = request.dtype;
  plan.strategy = request.strategy;
  plan.created_by = "longspan " LONGSPAN_VERSION;
  return plan;
}

bool Score::better_than(const Score& other, Objective objective) const {
  if (overflow > 0 || other.overflow > 0) return overflow < other.overflow;
  if (objective != Objective::throughput) {
    const auto tier =
        static_cast<size_t>(objective == Objective::host_memory ? Tier::host : Tier::device);
    if (bytes[tier] != other.bytes[tier]) return bytes[tier] < other.bytes[tier];
  }
  return seconds < other.seconds;
}

Judge::Judge(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
             int64_t micro_batches)
    : hw_(hw),
      request_(request_of(model, hw, sequence, micro_batches)),
      cost_(hw, request_.dtype),
      fast_(cost_),
      bounds_(request_, cost_),
      budget_(hw) {}

Score Judge::bound(const Strategy& strategy) {
  const Bound b = bounds_.of(strategy);
  return score_of(strategy, budget_.overflow_of_live(b.peak_bytes), {b.step_seconds, b.peak_bytes});
}

double Judge::filled(const Strategy& strategy) {
  const TierBytes bytes = bounds_.of(strategy).peak_bytes;
  double most = 0;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (bytes[tier] == 0) continue;
    most = std::max(most, static_cast<double>(bytes[tier]) /
                              std::max(1.0, static_cast<double>(limits()[tier])));
  }
  return most;
}

Score Judge::guess(const Strategy& strategy) {
  const Bound b = bounds_.of(strategy);
  return score_of(strategy, budget_.overflow_of_live(b.peak_bytes),
                  {b.likely_seconds, b.peak_bytes});
}

Score Judge::score(const Strategy& strategy) {
  request_.strategy = strategy;
  const auto scored = [&](const Evaluation& e) {
    return score_of(strategy, budget_.overflow_of_live(e.peak_bytes), e);
  };
  const Score score = scored(fast_.evaluate(request_, [&](const Evaluation& e) {
    const Score rough = scored(e);
    // What is slower at first sight may be better by less than the fast path can tell.
    return rough.overflow == 0 && rough.seconds < least_seconds_;
  }));
  if (score.overflow == 0) least_seconds_ = std::min(least_seconds_, score.seconds);
  return score;
}

Score Judge::exact(const Strategy& strategy) {
  const auto known = std::find_if(exact_.begin(), exact_.end(),
                                  [&](const auto& entry) { return entry.first == strategy; });
  if (known != exact_.end()) {
    return score_of(strategy, budget_.overflow(known->second.peak_bytes), known->second);
  }
  request_.strategy = strategy;
  const Evaluation e = evaluate(request_, cost_);
  exact_.emplace_back(strategy, e);
  budget_.learn(fast_.peak_bytes(request_), e.peak_bytes);
  return score_of(strategy, budget_.overflow(e.peak_bytes), e);
}

double Judge::exact_seconds(const Strategy& strategy) {
  request_.strategy = strategy;
  return longspan::exact_seconds(request_, cost_) / static_cast<double>(strategy.parallel.data);
}

Plan Judge::plan(const Strategy& strategy) const {
  StepRequest request = request_;
  request.strategy = strategy;
  return plan_of(request, hw_);
}

}  // namespace longspan
