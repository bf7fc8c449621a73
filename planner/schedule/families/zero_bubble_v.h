// Offers ZB-V's schedules to families with more candidates. Internal to planner/schedule.
#pragma once

#include "planner/schedule/families/cheapest.h"
#include "planner/schedule/request.h"

namespace longspan {

/// Offers the static list, and the greedy's schedules without a limit and for fixed limits up to
/// the request's.
void offer_zb_v(const ScheduleRequest& request, Cheapest& cheapest);

}  // namespace longspan
