// OptPipe (arXiv 2510.05186): optimizes the order of a pipeline's lists, and what is offloaded, as
// a MILP, with the best schedule of the families as a warm start.
//
// First, windows of ranks and time are optimized one after another with the rest fixed
// (order_window.h), until no window improves; then, if it is not too large, the whole. Only the
// whole chooses what is offloaded; in windows that stays as in the warm start. The result is timed
// exactly and checked like any schedule, and is never slower than the warm start. If limits end the
// search, the answer is the best so far (possibly the warm start), and OptimalSchedule::stop tells
// which limit. It runs at most for the limits' time plus a fraction of a second. Safe from any
// thread, but one MILP is solved at a time.
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
  double start_cost = 0;  ///< the cost of the warm start
  std::string start;      ///< the name of the warm start
  /// A lower bound on the cost of any order in which stages run microbatches in the order of the
  /// warm start, and copies are requested as families of offloading schedules request them.
  double bound = 0;
  std::optional<Stop> stop;  ///< what ended the search; none: no window improves, and the whole is
                             ///< too large
  int64_t nodes = 0, binaries = 0;

  /// The relative gap between this cost and the lower bound; none if no bound is known.
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

/// The fastest schedule within the memory limit of all families that support the request's numbers,
/// as they are and with activations offloaded. Throws no_fit if there is none.
NamedSchedule best_of_families(const ScheduleRequest& request);

/// Whether reorder() supports the schedule: only forwards and backwards of one pipe with stages
/// that stay on their rank, and copies of whole activations.
bool can_be_reordered(const Schedule& schedule);

/// Optimizes the order of `start`. Its backwards are split into I and W. Activations may be
/// offloaded if there is a memory limit, ranks have one stage and one slice each, and
/// StageMemory::offloaded allows it. Throws bad_input for a schedule that cannot be reordered or
/// exceeds the limit.
OptimalSchedule reorder(const NamedSchedule& start, const ScheduleCosts& costs,
                        int64_t memory_limit, const SolverLimits& limits);

/// reorder() of best_of_families().
OptimalSchedule opt_pipe(const ScheduleRequest& request, const SolverLimits& limits);

}  // namespace longspan
