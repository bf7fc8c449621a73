// Dependencies of every action of a schedule, derived from the grammar.
//
//   F  of a stage: F of the stage before it, and of the slice before it on the same stage
//   I, B         : I or B of the stage behind it, F of its own, and of the slice behind it
//   W            : its I
//   R            : its F; I and B wait for it
//   offload      : its F; AWAIT and reload wait for it, and I and B for reload
//   S            : F of the last stage;  T: every rank's S; I and B of the last stage where there
//   is
//                  a cut vocabulary: every rank's S, or every rank's T if the schedule says so
// Where ranks share an action, an action that waits for it waits for all parts; what else a rank
// does of the same microbatch and slice waits for its own part. An exchange that is written out
// stands between: F waits for RECV_F and the SEND_F it belongs to; the message is on its way from
// the latter on, whenever the former is asked for, and WAIT_SEND_F waits for its end and for
// RECV_F. That a rank does its list in order is not written down here. Pure functions, safe from
// any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/schedule/schedule.h"

namespace longspan {

struct Wait {
  int32_t action;
  bool delayed;  ///< there is a message between ranks behind it: it takes the communication time
};

/// A schedule's actions, numbered rank after rank, with what each waits for.
struct LinkedActions {
  std::vector<Action> actions;
  std::vector<int32_t> first_of_rank;  ///< and one more entry: the number of actions
  std::vector<int32_t> first_wait;     ///< by action, and one more entry
  std::vector<Wait> waits;

  std::span<const Wait> waits_of(int32_t action) const {
    return {waits.data() + first_wait[action], waits.data() + first_wait[action + 1]};
  }
  int32_t rank_of(int32_t action) const;
};

/// Throws bad_input where an action is of no stage, microbatch or slice of the schedule, is there
/// twice, or needs one that is not there.
LinkedActions link(const Schedule& schedule);

}  // namespace longspan
