// What a rank holds while it works through its list: internal to planner/schedule.
//
// F takes a microbatch's activations, I gives back what W has no use for, W and B the rest; a copy
// channel takes some of them away in between.
#pragma once

#include <span>
#include <utility>

#include "planner/schedule/costs.h"
#include "planner/schedule/dependencies.h"

namespace longspan {

/// The most that `rank` holds, and the action at which it first does (-1 if it never holds
/// anything), from times as ScheduleTiming has them.
std::pair<int64_t, int32_t> peak_memory(const Schedule& schedule, const LinkedActions& linked,
                                        const ScheduleCosts& costs, std::span<const double> starts,
                                        std::span<const double> ends, int32_t rank);

}  // namespace longspan
