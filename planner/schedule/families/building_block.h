// Schedules in V made of one building block, repeated: internal to planner/schedule.
//
// Every rank has two stages, one on the way down (the first half of the model, from rank 0 to the
// last) and one on the way up. A building block says at which slot a microbatch does each of its
// four passes on each rank; microbatches follow each other six slots apart, which is what the six
// passes of a rank take (Pipeline Parallelism with Controllable Memory, arXiv 2405.15362). How long
// a microbatch lives, and so how much memory a rank needs, is decided by the block.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/schedule/request.h"

namespace longspan {

/// The passes of a microbatch in the order in which a rank does them.
enum VPass { kForwardDown, kForwardUp, kInputDown, kInputUp };

/// By rank, the slot of each pass of the first microbatch.
using BuildingBlock = std::vector<std::array<int32_t, 4>>;

/// The schedule that `block` makes: repeated for all microbatches, gradients of weights put into
/// the first free slots, passes before and after the steady part moved to earlier free slots where
/// the peak of memory stays, and everything drawn together; twice.
Schedule repeat(const ScheduleRequest& request, const BuildingBlock& block);

}  // namespace longspan
