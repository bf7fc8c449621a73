// Interleaved 1F1B whose microbatches follow each other evenly: internal to planner/schedule.
#pragma once

#include "planner/schedule/request.h"

namespace longspan {

/// Units from a microbatch's entry into a chunk to that into the next one, forwards and backwards.
struct ChunkDelays {
  int32_t forward = 1;
  int32_t backward = 1;
};

/// The unit of time is F, I and W of a chunk. Microbatch m enters chunk c at v m + K c, on the way
/// back likewise; where K and v have no common divisor, and K is the next larger number that has
/// none, every unit has one forward and one backward. A chunk c is alive for (K + K')(v-1-c) + p-r
/// units of every v. Backward is B, or I and W at once where it is `split`.
Schedule evenly_interleaved(const ScheduleRequest& request, const ChunkDelays& delays, bool split);

}  // namespace longspan
