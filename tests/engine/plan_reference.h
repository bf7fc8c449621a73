// Compares one step of a plan with the plain double-precision reference.
#pragma once

#include "tests/engine/plan_runner.h"

namespace longspan::testing {

/// CHECKs the loss, the gradients (relative, norm-wise) and that the arenas' high-water mark is as
/// predicted. In float32, `tolerance` applies to the gradient of every tensor. In a narrower type
/// it applies to that of every unit, because the gradients of some tensors (biases of keys) are
/// differences of much larger numbers. REQUIRES: one rank.
void check_against_reference(const StepCase& step, double tolerance);

/// Returns the relative, norm-wise error of the gradients of every unit. REQUIRES: one rank.
std::vector<double> gradient_errors(const StepCase& step);

}  // namespace longspan::testing
