#include "planner/schedule/families/cheapest.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "planner/schedule/families/lists.h"
#include "planner/schedule/timing.h"

namespace longspan {

void Cheapest::offer(Schedule schedule, int64_t from) {
  const ScheduleTiming timing = simulate(schedule, costs_);
  const int64_t peak = timing.peak_memory();
  const int64_t least = std::max(peak, from);
  if (least_memory_ == 0 || least < least_memory_) least_memory_ = least;
  if (memory_limit_ > 0 && peak > memory_limit_) return;
  if (best_ && std::pair(timing.cost, peak) >= std::pair(cost_, peak_)) return;
  best_ = std::move(schedule);
  cost_ = timing.cost;
  peak_ = peak;
}

Schedule cheapest_of(std::string_view family, const ScheduleRequest& request, int64_t held,
                     const OfferAll& offer_all) {
  Cheapest cheapest(request.costs, request.memory_limit);
  offer_all(request, cheapest);
  if (std::optional<Schedule> best = cheapest.take()) return *std::move(best);
  // All that the family makes for any limit. Nothing is kept, as generators may leave out what
  // costs more than the schedule kept.
  ScheduleRequest any = request;
  any.memory_limit = 0;
  Cheapest none(request.costs, 1);
  offer_all(any, none);
  throw no_fit(
      "{} cannot keep within a memory limit of {:.4g} microbatches on each of {}; it takes "
      "{}",
      family, in_microbatches(request.memory_limit, held), counted(request.ranks, "rank", "ranks"),
      limit_text(in_microbatches(none.least_memory(), held)));
}

}  // namespace longspan
