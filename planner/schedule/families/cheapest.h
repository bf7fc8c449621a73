// The cheapest of several schedules that a family generates: internal to planner/schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "planner/schedule/costs.h"

namespace longspan {

/// Plain value; holds on to `costs`, which must outlive it.
class Cheapest {
 public:
  /// Only schedules whose ranks hold `memory_limit` at most, in the unit of `costs`; 0: any amount.
  explicit Cheapest(const ScheduleCosts& costs, int64_t memory_limit = 0)
      : costs_(costs), memory_limit_(memory_limit) {}

  /// Keeps `schedule` where it fits and costs less than every one before, or as little in less
  /// memory; of equals the first.
  void offer(Schedule schedule);

  /// The one kept, once; none where none fitted or none was offered.
  std::optional<Schedule> take() { return std::move(best_); }

  /// The cost of the one kept; 0 for none.
  double cost() const { return best_ ? cost_ : 0; }

  /// The least that a rank must be able to hold for one of those offered to fit; 0 for none.
  int64_t least_memory() const { return least_memory_; }

 private:
  const ScheduleCosts& costs_;
  int64_t memory_limit_;
  std::optional<Schedule> best_;
  double cost_ = 0;
  int64_t peak_ = 0, least_memory_ = 0;
};

}  // namespace longspan
