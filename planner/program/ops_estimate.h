// How many ops a step has, without lowering it: what decides whether its program is to be held
// whole, and what looking at it will take.
#pragma once

#include <cstdint>

#include "planner/program/program.h"

namespace longspan {

/// Ops of build_program(request), or close to that; of a pipeline's stages and of layers that
/// differ as if one rank had them all and all had attention. At most 2^62. REQUIRES: a strategy
/// that is valid for the length.
int64_t ops_estimate(const StepRequest& request);

}  // namespace longspan
