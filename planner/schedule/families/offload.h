// Activations that are away on the host between their forward and their backward.
#pragma once

#include <functional>

#include "planner/schedule/schedule.h"

namespace longspan {

/// Writes copies into the lists of `schedule`, of the forwards that `leaves` says yes to. OFFLOAD
/// is asked for behind the forward, and the forward after the next waits for it, so that what is
/// held does not grow where forwards are faster than copies. RELOAD is asked for a backward ahead.
/// What stays for fewer than `worth` forwards of its rank is not worth a way there and back, and is
/// kept. REQUIRES: lists without copies.
void offload(Schedule& schedule, int worth,
             const std::function<bool(const Action& forward)>& leaves);

}  // namespace longspan
