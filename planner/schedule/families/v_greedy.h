// Greedy schedules in a V for any memory limit. Internal to planner/schedule.
//
// A rank runs the first of its ready passes by an order of preference, and weight gradients where
// it would wait. A forward on the way down leaves room for one on the way up, or one on the way up
// is there whose memory will be free, so that the oldest microbatch can always proceed: with memory
// for one microbatch or more there is no deadlock. The free choices (preferences, the number of
// microbatches that the first rank lets in, whether weight gradients come before other passes, how
// room is left) are enumerated, as Pipeline Parallelism with Controllable Memory (arXiv 2405.15362,
// section 4) does with those of its building blocks.
#pragma once

#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/request.h"

namespace longspan {

/// Offers the greedy's schedules for fixed limits up to the request's.
void offer_v_greedy(const ScheduleRequest& request, Cheapest& cheapest);

}  // namespace longspan
