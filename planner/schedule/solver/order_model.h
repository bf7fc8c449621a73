// The MILP of the order of every rank's list and of what is offloaded in between. Internal to
// planner/schedule/solver.
//
// Columns: the start of every action, relative to the start of its rank's list; a binary for the
// order of two actions of a rank that may come either way round; a binary for whether a forward's
// activations are offloaded. The objective is the longest span of a rank. Rows express
// dependencies, one action at a time per rank, memory, and the order of copies on a channel. Two
// further kinds of row tighten the relaxation: an action starts after all actions that its rank has
// put before it, and the span covers all actions put after it. Orders that cannot lie within the
// span of the warm start are fixed beforehand.
//
// Copies are requested as in families of offloading schedules (schedule/families/offload.h):
// OFFLOAD after its forward, awaited by the forward after the next, and RELOAD one backward ahead.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "planner/schedule/schedule.h"
#include "planner/schedule/solver/choice.h"
#include "planner/schedule/solver/partial_order.h"

namespace longspan {

class OrderModel {
 public:
  /// `linked` is of `schedule`, which has forwards, input gradients and weight gradients of one
  /// pipe and no copies; both must outlive the model. `longest` is the span not to be exceeded.
  /// With `copies`, forwards of ranks that have one stage and one slice may be offloaded.
  OrderModel(const Schedule& schedule, const LinkedActions& linked, const ScheduleCosts& costs,
             int64_t memory_limit, double longest, bool copies);

  const Milp& milp() const { return milp_; }
  /// A lower bound on the span of any order within `longest`, known without solving; in the costs'
  /// unit.
  double bound() const { return bound_; }
  /// Converts an objective or a bound of milp() to the costs' unit.
  double time_of(double objective) const { return objective * unit_; }

  /// The order of `other`'s lists and its copies as a warm start: columns and their values.
  /// REQUIRES: apart from copies, `other` has the actions of the schedule.
  std::vector<Term> choices_of(const Schedule& other) const;
  /// The schedule that a solution's values describe.
  Schedule schedule_of(const std::vector<double>& values) const;

 private:
  // Offloading and reloading the activations of one forward.
  struct Copy {
    int32_t forward = -1, waiting = -1;       // forward, and the forward that waits for its memory
    int32_t gradient = -1, asked = -1;        // gradient that needs them, and the one after RELOAD
    int32_t taken = -1, out = -1, back = -1;  // columns: whether, and when each copy starts
    double out_time = 0, back_time = 0;
    double memory = 0;  // memory freed in between, as a share of the limit
  };
  // The numbers of another schedule's actions, by kind, stage, microbatch and slice.
  using Places = std::map<std::tuple<ActionKind, int32_t, int32_t, int32_t>, int32_t>;

  Places places_of(const LinkedActions& other) const;
  int32_t ranks() const { return static_cast<int32_t>(schedule_.ranks.size()); }
  int32_t begin(int32_t rank) const { return linked_.first_of_rank[rank]; }
  int32_t end(int32_t rank) const { return linked_.first_of_rank[rank + 1]; }
  int32_t& column_of(int32_t a, int32_t b) { return columns_[int64_t{a} * order_.count() + b]; }
  int32_t column_of(int32_t a, int32_t b) const {
    return columns_[int64_t{a} * order_.count() + b];
  }
  bool open(int32_t a, int32_t b) const { return !order_.precedes(a, b) && !order_.precedes(b, a); }
  Choice first(int32_t a, int32_t b) const;  // whether a comes before b on one rank

  void find_windows();
  void fix_by_windows();
  void add_times(const ScheduleCosts& costs);
  void add_order(int32_t rank);
  void add_loads(int32_t rank);
  void add_copies(int32_t rank, const ScheduleCosts& costs, int64_t limit);
  void add_channel(const std::vector<Copy>& copies);
  void add_memory(int32_t rank, const ScheduleCosts& costs, int64_t limit);
  void at_least(double lower, Sum sum);
  // Adds later >= earlier + time * (the value of `of`, or 1 without), if `so`.
  void follow(int32_t later, int32_t earlier, double time, int32_t of, const Choice& so);

  const Schedule& schedule_;
  const LinkedActions& linked_;
  PartialOrder order_;
  double longest_, bound_ = 0, unit_ = 1;
  std::vector<double> before_, after_;  // by action: least time from rank's start, to its end
  Milp milp_;
  int32_t span_ = -1;                      // the column of the objective
  std::vector<int32_t> starts_, offsets_;  // columns, by action and by rank
  std::vector<int32_t> columns_;           // of two actions, the lower number first
  std::vector<std::vector<Copy>> copies_;  // by rank
};

}  // namespace longspan
