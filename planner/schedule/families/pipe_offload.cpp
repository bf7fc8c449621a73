// PO-H and PO-F (PipeOffload, arXiv 2503.01328): chunks evenly interleaved, and their activations
// on the host between their uses: those of half of a rank's chunks, which are the first, since they
// wait longest for their backward, or those of all. About (v+2) p / 8 chunks stay with half of them
// away, and a few with all of them away, wherever copies keep up: offload + reload <= F + I + W.
#include "planner/schedule/families/evenly.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/offload.h"

namespace longspan {
namespace {

// Forwards behind its own for which a chunk's activations leave: three ways there and back.
constexpr int kWorth = 3;

// With the first `away` chunks of every rank offloaded.
Schedule offloaded(const ScheduleRequest& request, int32_t away) {
  const int32_t half = (request.ranks + 1) / 2;  // the least for the way down and the way back
  Schedule schedule = evenly_interleaved(request, {half, half}, true);
  offload(schedule, kWorth, [&](const Action& f) { return f.stage / request.ranks < away; });
  return schedule;
}

}  // namespace

Schedule half_offloaded(const ScheduleRequest& request) {
  return offloaded(request, (request.virtual_stages + 1) / 2);
}

Schedule fully_offloaded(const ScheduleRequest& request) {
  return offloaded(request, request.virtual_stages);
}

}  // namespace longspan
