// The memory that an action takes or frees, counted by the order of its rank's list alone. Internal
// to planner/schedule/solver.
#pragma once

#include <cstdint>

#include "planner/schedule/costs.h"

namespace longspan {

/// Memory taken from the action on, or freed if negative; an action frees at its end. AWAIT frees
/// what OFFLOAD takes away, and RELOAD takes it again: never less than in time. REQUIRES: the
/// action is a forward, a backward, or a copy of all that may be offloaded.
int64_t memory_taken(const Action& action, const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace longspan
