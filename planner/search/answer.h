// Converts a candidate to a plan. Internal to planner/search.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/plan/plan.h"

namespace longspan {

/// The plan of `c`, with the prediction of its exact score.
Plan plan_of(const Evaluator& evaluator, const Candidate& c, const Score& exact);

}  // namespace longspan
