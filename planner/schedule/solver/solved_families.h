// Families whose schedules a solver makes, for `longspan schedule`. The rows are like those of the
// registry, but without generators: opt_pipe.h and adaptis.h need the solver and its time. Plans do
// not use them.
#pragma once

#include <span>

#include "planner/schedule/registry.h"

namespace longspan {

std::span<const ScheduleFamily> solved_families();

/// Returns null for other names.
const ScheduleFamily* solved_family(std::string_view name);

}  // namespace longspan
