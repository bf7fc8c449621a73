// The output layer cut over all ranks, in a schedule that does not know of it: internal to
// planner/schedule.
#pragma once

#include "planner/schedule/request.h"

namespace longspan {

/// `schedule`, which has no S and T, with both of every microbatch in every rank's list: each rank
/// keeps its order and does S and T where they fit, by the times of `costs`; of some ways to choose
/// the one that costs least. `input_gradient_in_t` as in Schedule. Where gradients of the last
/// stage do not come late enough for the exchanges, ranks wait.
Schedule with_cut_vocabulary(const Schedule& schedule, const ScheduleCosts& costs,
                             bool input_gradient_in_t);

}  // namespace longspan
