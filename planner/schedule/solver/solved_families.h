// Schedules that a solver makes for `longspan schedule`: rows like those of the registry, without
// generators, as what makes them (opt_pipe.h, adaptis.h) needs the solver and takes its time.
// They are not planned with.
#pragma once

#include <span>

#include "planner/schedule/registry.h"

namespace longspan {

std::span<const ScheduleFamily> solved_families();

/// None for other names.
const ScheduleFamily* solved_family(std::string_view name);

}  // namespace longspan
