// The passes of a cut vocabulary that a schedule leaves to its execution: E and G of the embedding.
//
// They are short, so schedules do not arrange themselves around them. All times here are those of
// passes that take one unit each. E comes a repetition of the schedule before the forward that
// takes its rows, so that the first rank does not wait for it; G some units after the backward that
// makes the gradient, as nothing waits for it. Each is between an earlier and a later time of what
// it waits for and what waits for it, so no rank waits in a circle. The rank of the first stage
// looks its own rows up within F, and their gradients within B.
#pragma once

#include "planner/schedule/costs.h"
#include "planner/schedule/schedule.h"

namespace longspan {

/// Whether its lists have S and T.
bool cuts_vocabulary(const Schedule& schedule);

/// The schedule with these passes. Unchanged if it has them, or cuts no vocabulary.
Schedule with_share_passes(const Schedule& schedule);

/// One unit for each pass, at whose starts all that an action waits for is done.
ScheduleCosts unit_costs();

}  // namespace longspan
