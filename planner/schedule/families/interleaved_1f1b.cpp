// Interleaved 1F1B (Megatron-LM, arXiv 2104.04473): v chunks of layers on each rank, round robin.
// Microbatches go in groups of N through a rank's first chunk, then its second. Bubble (p-1)(F+B)/v
// for v times the messages.
//
// N is the request's group. Without one it is chosen as in PyTorch: the number of ranks if that
// divides the microbatches, else the next larger number that does.
#include "base/error.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

int32_t group_of(const ScheduleRequest& request) {
  const int32_t m = request.microbatches;
  if (request.group > 0) {
    const int32_t rest = m % request.group;
    if (request.group < request.ranks || (rest > 0 && rest < request.ranks)) {
      throw bad_input(
          "interleaved-1f1b takes groups of {} microbatches or more, of which {} leave none or as "
          "many; got {}",
          request.ranks, m, request.group);
    }
    return request.group;
  }
  return equal_groups("interleaved-1f1b", m, request.ranks);
}

}  // namespace

Schedule interleaved_1f1b(const ScheduleRequest& request) {
  const int32_t p = request.ranks, group = group_of(request);
  Schedule schedule = empty_schedule(request, p * request.virtual_stages);
  for (int32_t rank = 0; rank < p; ++rank) {
    schedule.ranks[rank] = looped_one_and_one(request, rank, group, 2 * (p - 1 - rank));
  }
  return schedule;
}

}  // namespace longspan
