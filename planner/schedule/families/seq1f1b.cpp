// Schedules whose unit is a slice of a sequence. A slice's forward attends to the keys of earlier
// slices, so forwards of a microbatch go from the first slice to the last. Backwards add to the
// gradients of those keys, so they go from the last to the first.
//
//   Seq1F1B (arXiv 2406.03488): 1F1B of slices with p-r-2+s forwards first, since the first
//   backward is that of a microbatch's last slice. Bubble (p-1)(F+B)/s, memory (p-r+s-1)/s
//   microbatches.
//   Seq1F1B-I: interleaved 1F1B of slices in groups of p. Here a group holds whole microbatches,
//   since backward begins with their last slices: if s does not divide p, the next larger equal
//   groups (groups of p would deadlock).
//   TeraPipe (arXiv 2102.07988): all forwards of slices, then all backwards.
//   SPPO (arXiv 2503.10377): Seq1F1B that offloads as much of each slice as the next one's forward
//   hides, so that bubbles do not grow.
//   ChunkFlow (arXiv 2503.02356): Seq1F1B that keeps the last K slices of a sequence. Earlier
//   slices keep only keys, values and the input, and repeat their forward directly before their
//   backward.
#include <algorithm>

#include "base/error.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/offload.h"

namespace longspan {
namespace {

// Interleaved 1F1B of slices; `group` slices go through a chunk at a time.
Schedule interleaved_slices(const ScheduleRequest& request, int32_t group) {
  const int32_t p = request.ranks;
  Schedule schedule = empty_schedule(request, p * request.virtual_stages);
  for (int32_t rank = 0; rank < p; ++rank) {
    schedule.ranks[rank] =
        looped_one_and_one(request, rank, group, 2 * (p - 1 - rank) + request.slices - 1);
  }
  return schedule;
}

}  // namespace

Schedule seq1f1b(const ScheduleRequest& request) {
  Schedule schedule = empty_schedule(request, request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] = one_and_one(in_order(request, ActionKind::forward, rank),
                                       in_order(request, ActionKind::backward, rank),
                                       request.ranks - 2 - rank + request.slices);
  }
  return schedule;
}

Schedule sppo(const ScheduleRequest& request) {
  Schedule schedule = seq1f1b(request);
  schedule.offloaded_shares = shares_that_forwards_hide(schedule, request.costs);
  offload(schedule, 1, [](const Action&) { return true; });
  return schedule;
}

Schedule chunk_flow(const ScheduleRequest& request) {
  Schedule schedule = seq1f1b(request);
  const int32_t again = request.slices - std::max(1, request.group);  // the first slices
  recompute(schedule, [&](const Action& backward) { return backward.slice < again; });
  return schedule;
}

Schedule seq1f1b_interleaved(const ScheduleRequest& request) {
  const int32_t whole =
      (request.ranks + request.slices - 1) / request.slices;  // microbatches with p slices
  return interleaved_slices(
      request, equal_groups("seq1f1b-i", request.microbatches, whole) * request.slices);
}

Schedule slimpipe(const ScheduleRequest& request) {
  if (request.slices % request.ranks != 0) {
    throw bad_input(
        "slimpipe cuts a sequence into a multiple of the ranks, so that all of them work on one "
        "microbatch; got {} slices and {} ranks",
        request.slices, request.ranks);
  }
  return interleaved_slices(request, request.slices);
}

Schedule terapipe(const ScheduleRequest& request) {
  Schedule schedule = empty_schedule(request, request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] = one_and_one(in_order(request, ActionKind::forward, rank),
                                       in_order(request, ActionKind::backward, rank),
                                       int64_t{request.microbatches} * request.slices);
  }
  return schedule;
}

}  // namespace longspan
