#include "planner/schedule/families/cheapest.h"

#include <utility>

#include "planner/schedule/timing.h"

namespace longspan {

void Cheapest::offer(Schedule schedule) {
  const ScheduleTiming timing = simulate(schedule, costs_);
  const int64_t peak = timing.peak_memory();
  if (least_memory_ == 0 || peak < least_memory_) least_memory_ = peak;
  if (memory_limit_ > 0 && peak > memory_limit_) return;
  if (best_ && std::pair(timing.cost, peak) >= std::pair(cost_, peak_)) return;
  best_ = std::move(schedule);
  cost_ = timing.cost;
  peak_ = peak;
}

}  // namespace longspan
