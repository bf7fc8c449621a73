// Offloads activations to the host between their forward and their backward.
#pragma once

#include <functional>

#include "planner/schedule/schedule.h"

namespace longspan {

/// Writes copies into the lists of `schedule` for the forwards for which `leaves` returns true.
/// OFFLOAD follows the forward, and the forward after the next waits for it, so that memory does
/// not grow if forwards are faster than copies. RELOAD is requested one backward ahead. Activations
/// that live for fewer than `worth` forwards of their rank are kept, because copies would not pay.
/// REQUIRES: lists without copies.
void offload(Schedule& schedule, int worth,
             const std::function<bool(const Action& forward)>& leaves);

}  // namespace longspan
