// Whether a schedule is one: everything done once, in an order that ends, within memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/schedule/costs.h"

namespace longspan {

/// The first thing that is wrong with `schedule`, as one line; none where nothing is. Looked at in
/// this order: there are as many actions as stages, microbatches and slices ask for; every action
/// names a stage, microbatch and slice and is there once; every stage does F and either B or I and
/// W of every microbatch and slice, all on one rank; what is sent is received; the lists end; no
/// rank ever holds more than `memory_limit` (0: any amount).
std::optional<std::string> first_fault(const Schedule& schedule, const ScheduleCosts& costs,
                                       int64_t memory_limit = 0);

}  // namespace longspan
