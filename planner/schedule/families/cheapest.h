// Keeps the cheapest of the schedules that a family generates. Internal to planner/schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "planner/schedule/costs.h"

namespace longspan {

/// Plain value; refers to `costs`, which must outlive it.
class Cheapest {
 public:
  /// Keeps only schedules whose ranks hold at most `memory_limit`, in the unit of `costs`; 0:
  /// unlimited.
  explicit Cheapest(const ScheduleCosts& costs, int64_t memory_limit = 0)
      : costs_(costs), memory_limit_(memory_limit) {}

  /// Keeps `schedule` if it fits and costs less than all before, or the same in less memory. The
  /// first of equals stays.
  void offer(Schedule schedule);

  /// Moves out the schedule kept; none if none fitted or was offered. Call at most once.
  std::optional<Schedule> take() { return std::move(best_); }

  /// The cost of the schedule kept; 0 without one.
  double cost() const { return best_ ? cost_ : 0; }

  /// The smallest memory limit with which one of the offered schedules fits; 0 if none was offered.
  int64_t least_memory() const { return least_memory_; }

 private:
  const ScheduleCosts& costs_;
  int64_t memory_limit_;
  std::optional<Schedule> best_;
  double cost_ = 0;
  int64_t peak_ = 0, least_memory_ = 0;
};

}  // namespace longspan
