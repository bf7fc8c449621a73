// OptPipe (arXiv 2510.05186): the order of a pipeline's lists, and what is offloaded, by mixed
// integer programming, from the best schedule of the families as a warm start.
//
// First windows of time are optimised one after another, the rest as it is, until none has anything
// better; then, where it is not too large, all at once. What comes out is timed exactly and checked
// like any schedule, and is never slower than the warm start. Where limits end the search the
// answer is the best so far, the warm start if need be, and says so. Takes its limits' time at
// most, and a fraction of a second; safe from any thread, but one programme is solved at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/schedule/request.h"
#include "planner/schedule/solver/milp.h"

namespace longspan {

struct OptimalSchedule {
  Schedule schedule;
  double cost = 0;        ///< the longest span of a rank
  double start_cost = 0;  ///< of the schedule to begin with
  std::string start;      ///< its name
  /// No order is faster in which a stage takes microbatches as the warm start does, and in which
  /// copies are asked for as families of offloading schedules ask for them.
  double bound = 0;
  std::optional<Stop> stop;  ///< what ended the search; none: too large to be solved whole
  int64_t nodes = 0, binaries = 0;

  /// By how much of the best order's cost this one may be above it; none where no bound is known.
  std::optional<double> gap() const {
    return bound > 0 ? std::optional<double>(cost / bound - 1) : std::nullopt;
  }
};

/// A schedule with a name.
struct NamedSchedule {
  std::string name;
  Schedule schedule;
  double cost = 0;
};

/// The best of all families that take the request's numbers, as they are and with their activations
/// offloaded, the fastest within the memory limit. Throws no_fit where there is none.
NamedSchedule best_of_families(const ScheduleRequest& request);

/// Whether the order is one that reorder() takes: forwards and backwards of one pipe whose stages
/// stay on a rank, and copies of whole activations.
bool can_be_reordered(const Schedule& schedule);

/// The order that `start` could have. Its backwards are taken apart to I and W; it may offload.
/// Activations are offloaded where there is a memory limit, ranks have one stage and slice each,
/// and some of their memory may leave. Throws bad_input for a schedule that cannot be reordered
/// or exceeds the limit.
OptimalSchedule reorder(const NamedSchedule& start, const ScheduleCosts& costs,
                        int64_t memory_limit, const SolverLimits& limits);

/// reorder() of best_of_families().
OptimalSchedule opt_pipe(const ScheduleRequest& request, const SolverLimits& limits);

}  // namespace longspan
