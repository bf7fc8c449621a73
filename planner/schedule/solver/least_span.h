// Lower bounds on the spans of schedules that need no solver. Internal to planner/schedule/solver.
#pragma once

#include <cstdint>

#include "planner/schedule/costs.h"

namespace longspan {

/// A lower bound on the longest span of a rank, whatever the order of its list: its work; and with
/// a limit, the memory that its microbatches hold from F until I can be done and then until the end
/// of W, times how long, divided by the limit. What OFFLOAD may remove does not count. REQUIRES:
/// can_be_reordered().
double least_span(const Schedule& schedule, const ScheduleCosts& costs, int64_t memory_limit);

}  // namespace longspan
