#include "planner/plan/plan.h"

#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/cost/cost_model.h"
#include "planner/evaluate/evaluate.h"
#include "planner/program/ops_estimate.h"

namespace longspan {
int64_t sequences_of_step(const Plan& plan) {
  return plan.model.micro_batch * plan.microbatches * plan.strategy.parallel.data;
}

StepRequest step_request(const Plan& plan) {
  StepRequest request;
  request.model = plan.model;
  request.strategy = plan.strategy;
  request.sequence = plan.tokens();
  request.microbatches = plan.microbatches;
  request.dtype = plan.dtype;
  request.compute_capability = plan.hardware.device.compute_capability;
  return request;
}

Prediction prediction_of(const Plan& plan, double step_seconds,
                         const std::array<int64_t, kTierCount>& peak_bytes) {
  const auto batches = static_cast<double>(plan.microbatches * plan.strategy.parallel.data);
  // Devices on one processor share its peak.
  const double peak = peak_flops(plan.hardware, plan.dtype) *
                      static_cast<double>(plan.hardware.devices()) /
                      static_cast<double>(devices_per_processor(plan.hardware));
  Prediction prediction;
  prediction.step_seconds = step_seconds;
  prediction.tokens_per_second = batches * static_cast<double>(plan.tokens()) / step_seconds;
  const ModelFlops flops = model_flops(plan.model, plan.tokens());
  const double work = plan.strategy.forward_only ? flops.forward() : flops.step();
  prediction.mfu = work * batches / step_seconds / peak;
  prediction.peak_bytes = peak_bytes;
  return prediction;
}

double seconds_per_sequence(const Plan& plan) {
  return plan.predicted.step_seconds / static_cast<double>(sequences_of_step(plan));
}

Prediction predict(const Plan& plan) {
  const Evaluation e = evaluate(step_request(plan), CostModel(plan.hardware, plan.dtype));
  return prediction_of(plan, e.step_seconds, e.peak_bytes);
}

Plan forward_plan(Plan plan) {
  plan.strategy = for_forward(std::move(plan.strategy));
  validate(plan.strategy, plan.model, plan.tokens(), "--forward-only");
  plan.predicted = predict(plan);
  return plan;
}

std::string describe_shortfall(Tier tier, int64_t peak_bytes, int64_t capacity_bytes) {
  // Exact bytes in addition to rounded ones, as a plan can be a single byte too large.
  const auto shown = [](int64_t bytes) {
    return bytes < 1024 ? format_bytes(bytes) : fmt::format("{} ({})", format_bytes(bytes), bytes);
  };
  return fmt::format("{} memory: the plan's peak is {}, capacity {}, short by {}", name_of(tier),
                     shown(peak_bytes), shown(capacity_bytes), shown(peak_bytes - capacity_bytes));
}

std::string describe_shortfalls(const std::array<int64_t, kTierCount>& peak_bytes,
                                const std::array<int64_t, kTierCount>& capacity) {
  std::string all;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (peak_bytes[tier] <= capacity[tier]) continue;
    all += (all.empty() ? "" : "; ") +
           describe_shortfall(static_cast<Tier>(tier), peak_bytes[tier], capacity[tier]);
  }
  return all;
}

void check_ranks(const Plan& plan, const std::string& origin) {
  const int64_t ranks = plan.strategy.parallel.ranks(), devices = plan.hardware.devices();
  if (ranks == devices) return;
  throw bad_input("{}: {} rank{}, but {} has {} device{}: expected one rank on each", origin, ranks,
                  ranks == 1 ? "" : "s", plan.hardware.name, devices, devices == 1 ? "" : "s");
}

bool is_listable(const Plan& plan) { return ops_estimate(step_request(plan)) <= kMostListedOps; }

void check_listable(const Plan& plan, const std::string& origin) {
  if (is_listable(plan)) return;
  throw no_fit(
      "{}: chunks of {} tokens cut the step into {} ops, more than the {} that are held as a list; "
      "plan, simulate and explain say what it costs, to run or trace it use a larger chunk",
      origin, plan.strategy.chunk_tokens, ops_estimate(step_request(plan)), kMostListedOps);
}

void check_fits(const Plan& plan, const std::array<int64_t, kTierCount>& peak_bytes) {
  const std::string shortfalls = describe_shortfalls(peak_bytes, capacities(plan.hardware));
  if (!shortfalls.empty()) throw no_fit("{}", shortfalls);
}

}  // namespace longspan
