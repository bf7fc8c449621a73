// The times of a schedule whose actions slow each other down. Internal to planner/schedule.
//
// Ranks that are shares of one machine divide its processors, and a rank computes and copies at the
// same time, so an action's speed changes whenever another begins or ends. The rules are otherwise
// those of timing.h.
#pragma once

#include "planner/schedule/timing.h"

namespace longspan {

/// Starts and ends of all actions, and of each rank its start, end and busy time. An action that
/// never becomes ready ends at -1. REQUIRES: costs.speeds is empty or has a number for each rank;
/// every rank has its own channels; no action runs as one with another, and sending is free.
ScheduleTiming shared_times(const Schedule& schedule, const LinkedActions& linked,
                            const ScheduleCosts& costs);

}  // namespace longspan
