// PO-H and PO-F (PipeOffload, arXiv 2503.01328): evenly interleaved chunks whose activations are on
// the host between uses. PO-H offloads the first half of a rank's chunks, which wait longest for
// their backward, PO-F all. About (v+2) p / 8 chunks stay on the device with PO-H, and a few with
// PO-F, if copies keep up: offload + reload <= F + I + W.
#include "planner/schedule/families/evenly.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/offload.h"

namespace longspan {
namespace {

// The least forwards between a chunk's forward and backward for which it is offloaded: the time of
// three round trips of copies.
constexpr int kWorth = 3;

// The schedule with the first `away` chunks of every rank offloaded.
Schedule offloaded(const ScheduleRequest& request, int32_t away) {
  const int32_t half = (request.ranks + 1) / 2;  // the least for the ways down and up
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
