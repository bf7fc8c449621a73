// ZB-V's schedules for those who choose among more: internal to planner/schedule.
#pragma once

#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/request.h"

namespace longspan {

/// Offers the static list and what the greedy makes without a limit, and of some fixed limits up to
/// the request's.
void offer_zb_v(const ScheduleRequest& request, Cheapest& cheapest);

}  // namespace longspan
