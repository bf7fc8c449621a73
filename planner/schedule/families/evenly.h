// Interleaved 1F1B with microbatches at equal distances. Internal to planner/schedule.
#pragma once

#include "planner/schedule/request.h"

namespace longspan {

/// Units from a microbatch's entry into one chunk to its entry into the next, forward and backward.
struct ChunkDelays {
  int32_t forward = 1;
  int32_t backward = 1;
};

/// The unit of time is F + I + W of a chunk. Microbatch m enters chunk c at v m + K c, on the way
/// back likewise. K is rounded up to a number coprime to v, so that every unit has one forward and
/// one backward. A microbatch arrives every v units, and its activations in chunk c live for (K +
/// K')(v-1-c) + p-r units. Backward is B, or I followed by W if `split`.
Schedule evenly_interleaved(const ScheduleRequest& request, const ChunkDelays& delays, bool split);

}  // namespace longspan
