// GIS, grouped interleaved scheduling (PipeOffload, arXiv 2503.01328): interleaved 1F1B with a
// split backward, so that a stage passes its input gradient on before its weight gradients are
// done. The first backward waits for p-r-1 fewer forwards: a rank holds at most p v chunks, the
// bubble is (p-1)(F+I)/v.
//
//   GIS-H has groups of g = p/2 microbatches instead of p: g (v-1) + p chunks, for bubbles longer
//   by p-g chunks in every chunk of the warm-up except the first.
#include "base/error.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

Schedule of_groups(const ScheduleRequest& request, int32_t group) {
  const int32_t p = request.ranks;
  Schedule schedule = empty_schedule(request, p * request.virtual_stages);
  for (int32_t rank = 0; rank < p; ++rank) {
    schedule.ranks[rank] =
        with_delayed_weights(looped_one_and_one(request, rank, group, p - 1 - rank), 0);
  }
  return schedule;
}

}  // namespace

Schedule grouped_interleaved(const ScheduleRequest& request) {
  const int32_t p = request.ranks;
  if (request.group == 0) return of_groups(request, equal_groups("gis", request.microbatches, p));
  if (request.group < (p + 1) / 2 || request.microbatches % request.group != 0) {
    throw bad_input(
        "gis of {} ranks takes groups of {} microbatches or more that divide the {} there are; got "
        "{}",
        p, (p + 1) / 2, request.microbatches, request.group);
  }
  return of_groups(request, request.group);
}

Schedule half_grouped_interleaved(const ScheduleRequest& request) {
  return of_groups(request, equal_groups("gis-h", request.microbatches, (request.ranks + 1) / 2));
}

}  // namespace longspan
