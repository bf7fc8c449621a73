#include "planner/plan/pipeline_plan.h"

#include <fmt/format.h>

#include "planner/evaluate/evaluate.h"

namespace longspan {

namespace {

PipelineStep step_of(const Plan& plan, RankMemory memory) {
  const CostModel cost(plan.hardware, plan.dtype);
  const auto evaluate_stage = [&](const StepRequest& stage) { return evaluate(stage, cost); };
  return evaluate_pipeline(step_request(plan), cost, evaluate_stage, memory);
}

}  // namespace

PipelineStep pipeline_step(const Plan& plan) { return step_of(plan, RankMemory::laid_out); }

Schedule schedule_of(const Plan& plan) { return step_of(plan, RankMemory::summed).schedule; }

std::string why_not_run(const Plan& plan) {
  const Strategy& s = plan.strategy;
  const Pipeline& pipeline = s.parallel.pipeline;
  if (casts_operands(s)) {
    return fmt::format(
        "the engine does not compute products in {} yet; they are planned and "
        "simulated",
        name_of(s.products));
  }
  if (!s.parallel.has_pipeline() || can_be_laid_out(step_request(plan), schedule_of(plan))) {
    return "";
  }
  const ScheduleFamily& family = family_of(pipeline);
  const char* own = family.cuts_vocabulary       ? "cuts the vocabulary"
                    : family.exchanges_attention ? "shares attention between ranks"
                    : family.offloads            ? "offloads by itself"
                    : family.recomputes          ? "recomputes by itself"
                                                 : nullptr;
  if (!plan.model.uniform() && own != nullptr) {
    return fmt::format(
        "{} {}, which the engine does not run yet for a model whose layers differ; try --schedule "
        "1f1b",
        pipeline.schedule, own);
  }
  if (s.head_groups > 1) {
    return fmt::format(
        "{} has gradients of weights that come later, which the engine does not run in head "
        "groups; try --schedule 1f1b, or head_groups 1",
        pipeline.schedule);
  }
  return fmt::format("the engine does not run a {} yet; try --schedule 1f1b", describe(pipeline));
}

Prediction prediction_of(const Plan& plan, const PipelineStep& step) {
  return prediction_of(plan, step.whole.step_seconds, step.whole.peak_bytes);
}

}  // namespace longspan
