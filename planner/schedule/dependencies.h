// The dependencies of every action of a schedule, derived from the grammar.
//
//   F of a stage : F of the stage before, and of the slice before on the same stage
//   I, B         : I or B of the next stage and of the next slice, F of its own
//   W            : its I
//   R            : its F; I and B wait for R
//   offload      : its F; AWAIT and reload wait for it, I and B wait for reload
//   S            : F of the last stage
//   T            : every rank's S
//   I, B of the last stage with a cut vocabulary: every rank's S, or every rank's T if
//                input_gradient_in_t
//   F of the first stage: every rank's E, if there is any
//   G            : I or B of the first stage
// If ranks share an action, its dependents wait for all parts; later actions of a rank on the same
// microbatch and slice wait for the rank's own part. Explicit exchanges come in between: F waits
// for RECV_F and for its SEND_F. The message travels from SEND_F on, whenever RECV_F is posted, and
// WAIT_SEND_F waits for its arrival and for RECV_F. The order of a rank's list is not recorded
// here. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/schedule/schedule.h"

namespace longspan {

struct Wait {
  int32_t action;
  bool delayed;  ///< a message between ranks follows it: adds the communication time
};

/// A schedule's actions, numbered rank after rank, with the actions that each waits for.
struct LinkedActions {
  std::vector<Action> actions;
  std::vector<int32_t> first_of_rank;  ///< by rank; one more entry: the number of actions
  std::vector<int32_t> first_wait;     ///< by action; one more entry at the end
  std::vector<Wait> waits;

  std::span<const Wait> waits_of(int32_t action) const {
    return {waits.data() + first_wait[action], waits.data() + first_wait[action + 1]};
  }
  int32_t rank_of(int32_t action) const;
};

/// Throws bad_input if an action is outside the schedule's stages, microbatches or slices, appears
/// twice, or needs one that is missing.
LinkedActions link(const Schedule& schedule);

}  // namespace longspan
