// The order of every rank's list, and what leaves for the host in between, as a mixed integer
// programme: internal to planner/schedule/solver.
//
// A column for the start of every action, from the start of its rank's list; for two actions of a
// rank that may come either way round, a binary that says which comes first; for every forward a
// binary that says whether its activations are offloaded. The objective is the longest span of a
// rank. Rows say what waits for what, that a rank does one thing at a time, what it holds, and how
// copies follow each other on its channel. Two kinds of row more than that needs make the
// relaxation tight: an action starts when all that its rank has put before it is done, and the span
// goes on for all that is put behind it. What cannot be within the span of the schedule to begin
// with is fixed beforehand.
//
// Copies are asked for where families of offloading schedules do (schedule/families/offload.h):
// OFFLOAD behind its forward, waited for by the forward after the next, and RELOAD a backward
// ahead.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "planner/schedule/schedule.h"
#include "planner/schedule/solver/milp.h"
#include "planner/schedule/solver/partial_order.h"

namespace longspan {

/// A yes or no of which a programme is made: known, or what its column says.
struct Choice {
  int32_t column = -1;  ///< none: known
  bool yes = false;     ///< where known; else whether a 1 in the column means yes
};

class OrderModel {
 public:
  /// `linked` is of `schedule`, which has forwards, gradients of inputs and of weights of one pipe
  /// and no copies; both outlive the model. `longest` is the span not to be exceeded. Where
  /// `copies`, forwards of ranks that have one stage and one slice may leave for the host.
  OrderModel(const Schedule& schedule, const LinkedActions& linked, const ScheduleCosts& costs,
             int64_t memory_limit, double longest, bool copies);

  const Milp& milp() const { return milp_; }
  /// In the costs' unit: no order within `longest` has a shorter span, as far as is known without
  /// solving.
  double bound() const { return bound_; }
  /// The time of an objective or a bound of milp(), in the costs' unit.
  double time_of(double objective) const { return objective * unit_; }

  /// The order of `other`'s lists and its copies, as a solution to begin with: columns and their
  /// values. REQUIRES: the actions are those of the schedule, copies apart.
  std::vector<Term> choices_of(const Schedule& other) const;
  /// milp() with the order of two actions, and what leaves, as it is in `other`, unless both run
  /// between the times `from` and `to` there.
  Milp within(const Schedule& other, const ScheduleCosts& costs, double from, double to) const;
  /// What a solution's values mean.
  Schedule schedule_of(const std::vector<double>& values) const;

 private:
  // A way to the host and back that a forward's activations may take.
  struct Copy {
    int32_t forward = -1, waiting = -1;  // and the forward that waits until its memory is free
    int32_t gradient = -1, asked = -1;   // what needs them back, and in front of which gradient
    int32_t taken = -1, out = -1, back = -1;  // columns: whether, and when both copies start
    double out_time = 0, back_time = 0;
    double memory = 0;  // that is free in between, in parts of the limit
  };
  // A sum of columns and choices; what is known of it is a number.
  struct Sum {
    std::vector<Term> terms;
    double known = 0;

    Sum& add(double factor, int32_t column);
    Sum& add(double factor, const Choice& choice);
  };

  // The number of an action, by its kind, stage, microbatch and slice, in another schedule.
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
  Choice first(int32_t a, int32_t b) const;  // whether a comes before b; of one rank

  void find_windows();
  void fix_by_windows();
  void add_times();
  void add_order(int32_t rank);
  void add_loads(int32_t rank);
  void add_copies(int32_t rank, const ScheduleCosts& costs, int64_t limit);
  void add_channel(const std::vector<Copy>& copies);
  void add_memory(int32_t rank, const ScheduleCosts& costs, int64_t limit);
  void at_least(double lower, Sum sum);
  // later >= earlier + time * (the value of `of`, or 1 without), if `so`.
  void follow(int32_t later, int32_t earlier, double time, int32_t of, const Choice& so);

  const Schedule& schedule_;
  const LinkedActions& linked_;
  PartialOrder order_;
  double longest_, bound_ = 0, unit_ = 1, communication_;
  std::vector<double> before_, after_;  // by action: since its rank's start, until its rank's end
  Milp milp_;
  int32_t span_ = -1;                      // its column
  std::vector<int32_t> starts_, offsets_;  // columns, by action and by rank
  std::vector<int32_t> columns_;           // of two actions, the lower number first
  std::vector<std::vector<Copy>> copies_;  // by rank
};

}  // namespace longspan
