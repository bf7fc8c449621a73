// Why a pipeline wins or loses: compares the best plan with one and the best without. Pure
// functions.
#pragma once

#include <string>

#include "planner/plan/plan.h"

namespace longspan {

/// One sentence on the time of the two plans and where it goes: for the plan with a pipeline,
/// bubbles and the rest of a step; for the other, what compute waits for. REQUIRES: both have the
/// same length, and predictions; exactly one has a pipeline.
std::string why_chosen(const Plan& best, const Plan& alternative);

}  // namespace longspan
