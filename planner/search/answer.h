// The plan that a candidate is. Internal to planner/search.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/plan/plan.h"

namespace longspan {

/// With its prediction, from its exact score.
Plan plan_of(const Evaluator& evaluator, const Candidate& c, const Score& exact);

}  // namespace longspan
