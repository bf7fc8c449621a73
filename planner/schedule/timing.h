// Exact discrete-event simulation of a schedule: start and end of every action, memory of every
// rank.
//
// The rules are those that reproduce published bubble rates to the last decimal:
//   * a rank runs its list in order, one action at a time; actions that run as one start and end
//     together;
//   * an action starts when its dependencies are done, those on another rank `communication` later;
//     links are never contended;
//   * sending is free (published rates have `sending` = 0), or stops the rank for `sending` before
//     its next action;
//   * copies run concurrently with the list, in the order of request, one at a time on a channel or
//     one each way; neighbouring ranks may share a channel. A rank waits for a copy where it needs
//     the reloaded data, and at AWAIT;
//   * the cost of a step is the longest span of a rank, from the start of its first computation to
//     the end of its last (the optimizer needs no barrier between ranks). If ranks begin together
//     (ScheduleCosts::together), it is the makespan, which is always given too;
//   * the bubble rate is the share of that cost in which ranks do not compute, mean over ranks.
// Linking is the expensive part; a schedule linked once can be timed with many costs. Pure
// functions; safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/costs.h"
#include "planner/schedule/dependencies.h"

namespace longspan {

struct RankTiming {
  double start = 0;  ///< of its first computation, or 0 if ranks begin together
  double end = 0;    ///< of its last computation
  double busy = 0;   ///< time spent computing
  int64_t peak_memory = 0;
  int32_t peak_action = -1;  ///< the first action that reaches the peak

  double span() const { return end - start; }
};

struct ScheduleTiming {
  std::vector<double> starts, ends;  ///< by action, as numbered in LinkedActions
  std::vector<RankTiming> ranks;
  double cost = 0;      ///< the longest span
  double makespan = 0;  ///< from 0 to the end of the last action on any rank
  double bubble_rate = 0;

  int64_t peak_memory() const;  ///< the maximum over ranks
};

/// Throws bad_input for costs that do not match the schedule, and for deadlocks, with the actions
/// at which the ranks wait.
ScheduleTiming simulate(const Schedule& schedule, const LinkedActions& linked,
                        const ScheduleCosts& costs);
ScheduleTiming simulate(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace longspan
