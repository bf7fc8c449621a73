// Vocabulary parallelism in 1F1B (arXiv 2411.05288): the output layer is cut over all ranks, so
// that it does not delay the last one. S computes a rank's share of the logits and of the softmax,
// T its gradients; between them ranks exchange the softmax's terms.
//
//   1f1b-vocab-1: T computes the gradient of the last stage's output, two exchanges after its
//   forward; p+2 microbatches in flight.
//   1f1b-vocab-2: S computes it already; p+1 in flight, and T may be postponed.
#include "planner/schedule/families/cut_vocabulary.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

// 1F1B that begins with `more` additional forwards.
Schedule with_more_in_flight(const ScheduleRequest& request, int32_t more) {
  Schedule schedule = empty_schedule(request, request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] =
        one_and_one(in_order(request, ActionKind::forward, rank),
                    in_order(request, ActionKind::backward, rank), request.ranks - 1 - rank + more);
  }
  return schedule;
}

}  // namespace

Schedule vocabulary_1(const ScheduleRequest& request) {
  return with_cut_vocabulary(with_more_in_flight(request, 2), request.costs, true);
}
Schedule vocabulary_2(const ScheduleRequest& request) {
  return with_cut_vocabulary(with_more_in_flight(request, 1), request.costs, false);
}

}  // namespace longspan
