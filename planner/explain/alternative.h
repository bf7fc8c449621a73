// Why a pipeline wins, or does not: the best plan with one and the best without. Pure functions.
#pragma once

#include <string>

#include "planner/plan/plan.h"

namespace longspan {

/// One sentence on what the two take and where it goes: bubbles and the rest of a step where there
/// is a pipeline, what compute waits for where there is none. REQUIRES: of one length, with
/// predictions; just one of them has a pipeline.
std::string why_chosen(const Plan& best, const Plan& alternative);

}  // namespace longspan
