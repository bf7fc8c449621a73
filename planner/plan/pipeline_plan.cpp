#include "planner/plan/pipeline_plan.h"

#include "planner/evaluate/evaluate.h"

namespace longspan {

PipelineStep pipeline_step(const Plan& plan) {
  const CostModel cost(plan.hardware, plan.dtype);
  const auto evaluate_stage = [&](const StepRequest& stage) { return evaluate(stage, cost); };
  return evaluate_pipeline(step_request(plan), cost, evaluate_stage, RankMemory::laid_out);
}

Prediction prediction_of(const Plan& plan, const PipelineStep& step) {
  return prediction_of(plan, step.whole.step_seconds, step.whole.peak_bytes);
}

}  // namespace longspan
