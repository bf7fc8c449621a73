// When every action of a schedule runs, and what its ranks hold: exact discrete-event simulation.
//
// The rules are those under which published bubble rates come out to the last decimal:
//   * a rank does its list in order, one action at a time; actions that run as one start and end
//     together;
//   * an action starts when all it waits for is done, `communication` later what is on another
//   rank;
//     links are never contended;
//   * sending takes no time of a rank (`sending` of the costs is 0 in those rates), or stops it for
//     so long before its next action;
//   * copies run next to the list, in order of being asked for, one at a time on a channel, or one
//     each way, which neighbouring ranks may share; the rank waits for one where it needs what
//     comes back, and at AWAIT;
//   * a step costs the longest span of a rank, from the start of its first computation to the end
//   of
//     its last (the optimizer needs no barrier between ranks); the makespan is given as well;
//   * the bubble rate is the share of that cost in which ranks compute nothing, mean over ranks.
// Linking is what costs; a schedule linked once can be timed with many costs. Pure functions; safe
// from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/costs.h"
#include "planner/schedule/dependencies.h"

namespace longspan {

struct RankTiming {
  double start = 0;  ///< of its first action that computes
  double end = 0;    ///< of its last such
  double busy = 0;   ///< of which it computed
  int64_t peak_memory = 0;
  int32_t peak_action = -1;  ///< the action at which it is reached first

  double span() const { return end - start; }
};

struct ScheduleTiming {
  std::vector<double> starts, ends;  ///< by action, as numbered in LinkedActions
  std::vector<RankTiming> ranks;
  double cost = 0;      ///< the longest span
  double makespan = 0;  ///< from 0 to the end of the last action of all
  double bubble_rate = 0;

  int64_t peak_memory() const;  ///< of the rank that holds most
};

/// Throws bad_input for costs that do not fit the schedule, and where ranks wait for each other,
/// with the actions they wait in front of.
ScheduleTiming simulate(const Schedule& schedule, const LinkedActions& linked,
                        const ScheduleCosts& costs);
ScheduleTiming simulate(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace longspan
