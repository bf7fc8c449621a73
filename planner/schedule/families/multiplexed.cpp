// SPPO's multiplexed ends (arXiv 2503.10377, multiplexed sequence partition): where a pipeline
// fills and drains, a slice is cut once more over the ranks that would idle, as Megatron's sequence
// parallelism cuts a sequence.
//
//   Of N slices, stage i shares the first p-1-i with ranks i+1 .. p-1, which have nothing to do
//   yet, and the last i with ranks 0 .. i-1, which are done; it runs those between alone. Backward
//   is the same from the last slice to the first, on the ranks that hold the activations. Sequences
//   do not overlap: at both ends all ranks work on the same one. The times leave out that ranks
//   gather parameters of stages that they do not own.
#include "base/error.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/families/offload.h"

namespace longspan {
namespace {

// A rank's forwards of one sequence.
ActionList forwards_of(const ScheduleRequest& request, int32_t rank, int32_t m) {
  const int32_t p = request.ranks, n = request.slices;
  ActionList list;
  const auto add = [&](int32_t stage, int32_t first, int32_t last, int32_t ways) {
    for (int32_t slice = first; slice < last; ++slice) {
      list.push_back({ActionKind::forward, stage, m, slice, false, ways});
    }
  };
  for (int32_t stage = 0; stage <= rank; ++stage) add(stage, 0, p - 1 - stage, p - stage);
  add(rank, p - 1 - rank, n - rank, 1);
  for (int32_t stage = rank; stage < p; ++stage) add(stage, n - stage, n, stage + 1);
  return list;
}

}  // namespace

Schedule multiplexed_sppo(const ScheduleRequest& request) {
  if (request.slices < request.ranks) {
    throw bad_input("sppo-msp of {0} ranks cuts a sequence into {0} slices or more; got {1}",
                    request.ranks, request.slices);
  }
  Schedule schedule = empty_schedule(request, request.ranks);
  schedule.offloaded_shares = shares_that_forwards_hide(schedule, request.costs);
  schedule.moving_stages = true;
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    ActionList& list = schedule.ranks[rank];
    for (int32_t m = 0; m < request.microbatches; ++m) {
      const ActionList forwards = forwards_of(request, rank, m);
      list.insert(list.end(), forwards.begin(), forwards.end());
      for (auto forward = forwards.rbegin(); forward != forwards.rend(); ++forward) {
        list.push_back(*forward);
        list.back().kind = ActionKind::backward;
      }
    }
  }
  offload(schedule, 1, [](const Action&) { return true; });
  return schedule;
}

}  // namespace longspan
