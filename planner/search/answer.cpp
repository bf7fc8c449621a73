#include "planner/search/answer.h"

namespace longspan {

Plan plan_of(const Evaluator& evaluator, const Candidate& c, const Score& exact) {
  const StepRequest request = evaluator.request(c);
  Plan plan;
  plan.model = request.model;
  plan.hardware = evaluator.hardware();
  plan.sequence = plan.model.of_sequence(c.sequence);
  plan.microbatches = c.microbatches;
  plan.dtype = request.dtype;
  plan.strategy = c.strategy;
  plan.created_by = "longspan " LONGSPAN_VERSION;
  plan.predicted = prediction_of(plan, exact.step_seconds, exact.bytes);
  return plan;
}

}  // namespace longspan
