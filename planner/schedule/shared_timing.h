// The times of a schedule whose ranks are shares of one machine. Internal to planner/schedule.
//
// As many ranks as compute at a time share the machine's processors, so an action's speed changes
// whenever another rank begins or ends one. The rules are otherwise those of timing.h.
#pragma once

#include "planner/schedule/timing.h"

namespace longspan {

/// Starts and ends of all actions, and of each rank its start, end and busy time. An action that
/// never becomes ready ends at -1. REQUIRES: costs.speeds has a number for each rank.
ScheduleTiming shared_times(const Schedule& schedule, const LinkedActions& linked,
                            const ScheduleCosts& costs);

}  // namespace longspan
