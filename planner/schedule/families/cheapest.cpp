#include "planner/schedule/families/cheapest.h"

#include "planner/schedule/timing.h"

namespace longspan {

void Cheapest::offer(Schedule schedule) {
  const ScheduleTiming timing = simulate(schedule, costs_);
  const int64_t peak = timing.peak_memory();
  if (least_memory_ == 0 || peak < least_memory_) least_memory_ = peak;
  if (memory_limit_ > 0 && peak > memory_limit_) return;
  if (best_ && timing.cost >= cost_) return;
  best_ = std::move(schedule);
  cost_ = timing.cost;
}

}  // namespace longspan
