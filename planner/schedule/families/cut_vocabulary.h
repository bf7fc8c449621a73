// Cuts the output layer of a schedule over all ranks. Internal to planner/schedule.
#pragma once

#include "planner/schedule/request.h"

namespace longspan {

/// Inserts S and T of every microbatch into every rank's list of `schedule`, which has none. Each
/// rank keeps its order and does S and T where they fit by the times of `costs`; the cheapest of
/// several orders is returned. `input_gradient_in_t` is as in Schedule. If gradients of the last
/// stage come too early for the exchanges, ranks wait.
Schedule with_cut_vocabulary(const Schedule& schedule, const ScheduleCosts& costs,
                             bool input_gradient_in_t);

}  // namespace longspan
