// The schedules of `longspan schedule` that a solver makes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/schedule/compare.h"
#include "planner/schedule/solver/adaptis.h"
#include "planner/schedule/solver/solved_families.h"

namespace longspan::cli {

/// What they take besides a PipelineTask.
struct OptimalFlags {
  double seconds = 60;
  int64_t nodes = 2000;
  int layers = 0;                  ///< 0: four for each rank
  double embedding = 0, head = 0;  ///< in layers' times
};

struct OptimalAnswer {
  TimedSchedule timed;
  OptimalSchedule result;
  std::optional<AdaptisPlan> plan;  ///< where layers were cut, too
};

/// `family` is one of solved_families(). Shows progress on a terminal. Throws as opt_pipe() and
/// adaptis() do.
OptimalAnswer make_optimal(const ScheduleFamily& family, const PipelineTask& task,
                           const ScheduleChoice& choice, const OptimalFlags& flags);

/// "proven", "stopped by the time limit", ...: what ended the search, and the gap that is left.
std::string end_text(const OptimalSchedule& result);

}  // namespace longspan::cli
