// Memory limits for which greedy schedules are generated, independent of the requested limit.
// Internal to planner/schedule.
//
// With more memory a greedy runs further ahead, which does not always pay. A family that generates
// schedules for fixed levels up to the limit, and takes the cheapest of all that fit, has more
// choice with more memory, so it never gets slower with more memory.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/request.h"

namespace longspan {

/// Levels up to the request's limit and up to `most` times 1F1B's memory on the first rank, highest
/// first. That memory is divided into equal parts, 2^i in all or 2^i for each of its microbatches;
/// their number is bounded by work, at `actions` per level. `held`: memory of a microbatch on a
/// rank.
std::vector<int64_t> memory_levels(const ScheduleRequest& request, int64_t held, double most,
                                   int64_t actions);

}  // namespace longspan
