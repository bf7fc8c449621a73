// Which actions of a schedule come before which however its ranks order their lists, and how long
// before at least: internal to planner/schedule/solver.
//
// What an action waits for comes before it, and so does the same of a stage's earlier microbatches:
// a stage takes them in one order, the schedule's. Where microbatches are alike nothing is lost by
// that: the action that is first at one stage may as well be first at the next. A value of its own;
// safe from any thread as long as nothing adds to it.
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

#include "planner/schedule/costs.h"
#include "planner/schedule/dependencies.h"

namespace longspan {

class PartialOrder {
 public:
  /// Actions are numbered as in `linked`, which is of `schedule`. REQUIRES: it can be simulated,
  /// and no actions run as one.
  PartialOrder(const Schedule& schedule, const LinkedActions& linked, const ScheduleCosts& costs);

  int32_t count() const { return static_cast<int32_t>(durations_.size()); }
  double duration(int32_t action) const { return durations_[action]; }
  bool precedes(int32_t a, int32_t b) const { return a != b && least(a, b) >= 0; }
  /// From the start of `a` to the start of `b`, at least; negative where `a` need not come first.
  double least(int32_t a, int32_t b) const { return least_[int64_t{a} * count() + b]; }

  /// `b` starts when `a` has ended, or later. REQUIRES: b does not precede a.
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
