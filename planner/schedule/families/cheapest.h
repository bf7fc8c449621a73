// Keeps the cheapest of the schedules that a family generates. Internal to planner/schedule.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "planner/schedule/costs.h"
#include "planner/schedule/request.h"

namespace longspan {

/// Plain value; refers to `costs`, which must outlive it.
class Cheapest {
 public:
  /// Keeps only schedules whose ranks hold at most `memory_limit`, in the unit of `costs`; 0:
  /// unlimited.
  explicit Cheapest(const ScheduleCosts& costs, int64_t memory_limit = 0)
      : costs_(costs), memory_limit_(memory_limit) {}

  /// Keeps `schedule` if it fits and costs less than all before, or the same in less memory. The
  /// first of equals stays. `from`: the lowest memory limit for which the family makes it.
  void offer(Schedule schedule, int64_t from = 0);

  /// Moves out the schedule kept; none if none fitted or was offered. Call at most once.
  std::optional<Schedule> take() { return std::move(best_); }

  /// The cost of the schedule kept; 0 without one.
  double cost() const { return best_ ? cost_ : 0; }

  /// The smallest memory limit for which one of the offered schedules is made and fits; 0 if none
  /// was offered.
  int64_t least_memory() const { return least_memory_; }

 private:
  const ScheduleCosts& costs_;
  int64_t memory_limit_;
  std::optional<Schedule> best_;
  double cost_ = 0;
  int64_t peak_ = 0, least_memory_ = 0;
};

/// Offers what a family makes for the request's memory limit.
using OfferAll = std::function<void(const ScheduleRequest& request, Cheapest& cheapest)>;

/// The cheapest schedule that `offer_all` offers for the request. Throws no_fit if none is within
/// the memory limit, with the smallest limit for which there is one. `held`: memory of a microbatch
/// on a rank, for that message.
Schedule cheapest_of(std::string_view family, const ScheduleRequest& request, int64_t held,
                     const OfferAll& offer_all);

}  // namespace longspan
