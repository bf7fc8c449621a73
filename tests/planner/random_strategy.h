// Random legal requests for property tests of the planner.
#pragma once

#include <cstdint>

#include "planner/program/program.h"

namespace longspan::testing {

/// A small random model, a random legal strategy and a length it suits; the same for the same seed.
StepRequest random_request(uint64_t seed);

}  // namespace longspan::testing
