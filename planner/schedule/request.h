// The input of a schedule generator: sizes and costs.
#pragma once

#include <cstdint>

#include "planner/schedule/costs.h"

namespace longspan {

struct ScheduleRequest {
  int32_t ranks = 1;
  int32_t virtual_stages = 1;  ///< stages of each rank
  int32_t microbatches = 1;    ///< of a step, over all pipes
  int32_t slices = 1;
  /// Microbatches that pass a stage together, in families with such groups; 0: the family chooses.
  /// For ChunkFlow it is K, the number of slices that are kept.
  int32_t group = 0;
  /// Used by families that arrange actions by their times; the lists of others do not depend on it.
  ScheduleCosts costs = {};
  int64_t memory_limit = 0;  ///< of a rank, in the unit of `costs`; 0: unlimited
  /// For families that adapt to a memory limit, in its place: the most microbatches that a rank
  /// holds, of its v stages v parts each, whatever they take; 0: unlimited.
  int32_t in_flight = 0;
};

}  // namespace longspan
