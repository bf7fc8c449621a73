// Memory that a rank holds while it runs its list. Internal to planner/schedule.
//
// F allocates a microbatch's activations, I frees the part that W does not need, W or B frees the
// rest. Copies to the host remove a part in between.
#pragma once

#include <span>
#include <utility>

#include "planner/schedule/costs.h"
#include "planner/schedule/dependencies.h"

namespace longspan {

/// The peak of `rank` and the first action that reaches it (-1 if the rank never holds anything),
/// from times as in ScheduleTiming.
std::pair<int64_t, int32_t> peak_memory(const Schedule& schedule, const LinkedActions& linked,
                                        const ScheduleCosts& costs, std::span<const double> starts,
                                        std::span<const double> ends, int32_t rank);

}  // namespace longspan
