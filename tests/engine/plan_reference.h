// Holds one step of a plan to the plain double-precision reference.
#pragma once

#include "tests/engine/plan_runner.h"

namespace longspan::testing {

/// CHECKs the loss, the gradients (relative, norm-wise) and that the arenas' high water is what was
/// predicted. In float every tensor's gradient is held to `tolerance`; in a narrower type every
/// unit's, as some tensors' (biases of keys) are differences of much larger numbers. REQUIRES: one
/// rank.
void check_against_reference(const StepCase& step, double tolerance);

/// How far the gradients of every unit are off: relative, norm-wise. REQUIRES: one rank.
std::vector<double> gradient_errors(const StepCase& step);

}  // namespace longspan::testing
