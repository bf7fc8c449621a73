// What would let a plan that is refused fit. Internal to planner/search.
#pragma once

#include <string>

#include "planner/program/layout.h"

namespace longspan {

/// One change that lifts the limit of `tier`, as a part of a sentence: it follows from what holds
/// most of the tier at the peak of the refused program.
std::string lift_for(const Program& program, const Layout& layout, Tier tier);

}  // namespace longspan
