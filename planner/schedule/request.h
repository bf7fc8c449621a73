// What a schedule is asked for: how many of everything, and what it costs.
#pragma once

#include <cstdint>

#include "planner/schedule/costs.h"

namespace longspan {

struct ScheduleRequest {
  int32_t ranks = 1;
  int32_t virtual_stages = 1;  ///< stages of each rank
  int32_t microbatches = 1;    ///< of a step, of all pipes together
  int32_t slices = 1;
  /// Microbatches that go through a stage together, where a family has such groups; 0: its own
  /// choice. ChunkFlow's K, slices that are kept, is of these.
  int32_t group = 0;
  /// Looked at by families that arrange actions by their times; the others are the same for all.
  ScheduleCosts costs = {};
  int64_t memory_limit = 0;  ///< of a rank, in the unit of `costs`; 0: any amount
};

}  // namespace longspan
