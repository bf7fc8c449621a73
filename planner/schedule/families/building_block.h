// Schedules in a V made by repeating one building block. Internal to planner/schedule.
//
// Every rank has two stages: one on the way down (the first half of the model, from rank 0 to the
// last) and one on the way up. A building block gives the slot of each of a microbatch's four
// passes on each rank. Microbatches follow each other six slots apart, the length of a rank's six
// passes (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362). The block determines
// how long a microbatch's activations live, and thereby a rank's memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/schedule/request.h"

namespace longspan {

/// The passes of a microbatch, in a rank's order.
enum VPass { kForwardDown, kForwardUp, kInputDown, kInputUp };

/// By rank: the slot of each pass of the first microbatch.
using BuildingBlock = std::vector<std::array<int32_t, 4>>;

/// The schedule that repeats `block` for all microbatches. Weight gradients fill the first free
/// slots, passes before and after the steady phase move to earlier free slots if the peak of memory
/// allows, and gaps are closed. This is done twice.
Schedule repeat(const ScheduleRequest& request, const BuildingBlock& block);

}  // namespace longspan
