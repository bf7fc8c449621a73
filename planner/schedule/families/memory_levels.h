// Limits of memory that greedy schedules are made for, whatever the limit is that is asked for:
// internal to planner/schedule.
//
// With more memory a greedy runs further ahead, which does not always pay. A family that makes its
// schedules for some fixed levels up to the limit, and takes the cheapest of all that fit, has more
// to choose from the more memory there is: it is never slower with more.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/request.h"

namespace longspan {

/// Levels up to the request's limit and up to `most` times 1F1B's memory on the first rank, the
/// highest first. They are equal parts of that memory, 2^i in all or 2^i on each microbatch of it,
/// as many as work allows of which every one takes `actions`. `held`: by a microbatch, on a rank.
std::vector<int64_t> memory_levels(const ScheduleRequest& request, int64_t held, double most,
                                   int64_t actions);

}  // namespace longspan
