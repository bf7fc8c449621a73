// The schedules of `longspan schedule` that a solver computes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/schedule/compare.h"
#include "planner/schedule/solver/adaptis.h"
#include "planner/schedule/solver/solved_families.h"

namespace longspan::cli {

/// The solvers' inputs besides a PipelineTask.
struct OptimalFlags {
  double seconds = 60;
  int64_t nodes = 2000;
  int layers = 0;                  ///< 0: four for each rank
  double embedding = 0, head = 0;  ///< in units of a layer's time
};

struct OptimalAnswer {
  TimedSchedule timed;
  OptimalSchedule result;
  std::optional<AdaptisPlan> plan;  ///< set if the solver cut the layers, too
};

/// `family` is one of solved_families(). Shows progress on a terminal. Throws as opt_pipe() and
/// adaptis() do.
OptimalAnswer make_optimal(const ScheduleFamily& family, const PipelineTask& task,
                           const ScheduleChoice& choice, const OptimalFlags& flags);

/// How the search ended and the remaining gap: "proven", "stopped by the time limit", ...
std::string end_text(const OptimalSchedule& result);

}  // namespace longspan::cli
