// What would let a plan that is refused fit. Internal to planner/search.
#pragma once

#include <string>

#include "planner/program/program.h"

namespace longspan {

/// One change that lifts the limit of `tier`, as a part of a sentence: it follows from `largest`,
/// which holds most of the tier at the peak of the refused program.
std::string lift_for(const StepRequest& refused, Tensor largest, Tier tier);

}  // namespace longspan
