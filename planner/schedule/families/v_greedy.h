// Schedules in a V by a greedy that works under any limit of memory: internal to planner/schedule.
//
// A rank takes the first of its passes that is ready, by an order of preference, and does gradients
// of weights where it would wait. A forward on the way down leaves room for one on the way up, so
// that the oldest microbatch can always go on: with memory for one microbatch or more ranks never
// wait for each other for good. What is open (preferences, how many microbatches the first rank
// lets in, whether weights may delay what comes) is tried, as Pipeline Parallelism with
// Controllable Memory (arXiv 2405.15362, section 4) tries what its building blocks leave open.
#pragma once

#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/request.h"

namespace longspan {

/// Offers what the greedy makes of some fixed limits up to the request's.
void offer_v_greedy(const ScheduleRequest& request, Cheapest& cheapest);

}  // namespace longspan
