// The partial order of a schedule's actions that holds for any order of its ranks' lists, with the
// least time between actions. Internal to planner/schedule/solver.
//
// An action comes after its dependencies, and after the same action of its stage's earlier
// microbatches: a stage runs them in the schedule's order. If microbatches are alike, nothing is
// lost: the action that is first at one stage may as well be first at the next. A plain value; safe
// from any thread while nothing adds to it.
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

#include "planner/schedule/costs.h"
#include "planner/schedule/dependencies.h"

namespace longspan {

class PartialOrder {
 public:
  /// Actions are numbered as in `linked`, which is of `schedule`. REQUIRES: the schedule can be
  /// simulated, and no actions run as one.
  PartialOrder(const Schedule& schedule, const LinkedActions& linked, const ScheduleCosts& costs);

  int32_t count() const { return static_cast<int32_t>(durations_.size()); }
  double duration(int32_t action) const { return durations_[action]; }
  bool precedes(int32_t a, int32_t b) const { return a != b && least(a, b) >= 0; }
  /// The least time from the start of `a` to the start of `b`; negative if `a` need not come first.
  double least(int32_t a, int32_t b) const { return least_[int64_t{a} * count() + b]; }

  /// Adds that `b` starts after the end of `a`. REQUIRES: b does not precede a.
  void add(int32_t a, int32_t b) {
    assert(!precedes(b, a));
    add(a, b, durations_[a]);
  }

 private:
  void add(int32_t a, int32_t b, double time);

  std::vector<double> durations_;
  std::vector<double> least_;  // from row to column
};

}  // namespace longspan
