// Validates a schedule: everything is done once, the order ends, memory suffices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/schedule/costs.h"

namespace longspan {

/// Returns the first fault of `schedule` as one line, or none. The checks, in this order: the
/// number of actions covers stages, microbatches and slices; every action has a valid stage,
/// microbatch and slice and appears once; every stage does F and either B or I and W for every
/// microbatch and slice, all on one rank; every SEND has its RECV; the lists end without deadlock;
/// no rank ever holds more than `memory_limit` (0: unlimited).
std::optional<std::string> first_fault(const Schedule& schedule, const ScheduleCosts& costs,
                                       int64_t memory_limit = 0);

}  // namespace longspan
