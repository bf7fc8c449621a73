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

/// The lowest of `levels` (highest first) that is `least` or more. It is the lowest limit for which
/// a greedy makes what it makes for `level`, if any level from `least` to `level` gives the same. A
/// `level` of 0 is no limit, and greedies run without one for any limit: 0.
int64_t lowest_level(const std::vector<int64_t>& levels, int64_t least, int64_t level);

}  // namespace longspan
