// Fills the waits of a schedule by the times of its actions. Internal to planner/schedule.
#pragma once

#include "planner/schedule/costs.h"

namespace longspan {

/// The schedule with later actions of a rank brought forward where it would wait: of those whose
/// inputs have arrived, the first in its list. No rank holds more than it did at its peak.
/// `may_delay`: also where that delays the action that is next by the list. REQUIRES: F, I and W of
/// whole sequences on one pipe, a schedule that can be simulated; messages go to
/// neighbouring ranks, and no actions run as one.
Schedule fill_gaps(const Schedule& schedule, const ScheduleCosts& costs, bool may_delay);

}  // namespace longspan
