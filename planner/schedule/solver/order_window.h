// The MILP of the order of a window of a schedule's actions, with the order of all others fixed.
// Internal to planner/schedule/solver.
//
// A window is a range of ranks and of time: of every such rank, the actions of its list that start
// within the time. Its size does not depend on the schedule's, so that schedules of any length can
// be optimized window by window. What lies outside acts on the window by longest paths: the
// earliest start of each action, the least time between two actions, and the time from an action to
// the end of each rank's list. The objective is the longest span of a rank; among equal spans,
// early starts, so that later windows have more room.
//
// Copies to the host stay with their actions: OFFLOAD after the one before it in the list, AWAIT
// and RELOAD before the one after them. Contention of copies and the time of RELOAD are left out,
// so the caller has to time the result.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "planner/schedule/solver/choice.h"
#include "planner/schedule/timing.h"

namespace longspan {

/// A schedule whose windows are optimized. Refers to `schedule` and `costs`, which must outlive it.
class FixedOrder {
 public:
  /// REQUIRES: can_be_reordered(), and no actions run as one. `memory_limit` 0: unlimited.
  FixedOrder(const Schedule& schedule, const ScheduleCosts& costs, int64_t memory_limit);

  double cost() const { return timing_.cost; }
  double makespan() const { return timing_.makespan; }
  /// The sum of the starts of all F and I.
  double starts() const { return starts_; }
  int32_t ranks() const { return static_cast<int32_t>(linked_.first_of_rank.size()) - 1; }
  /// The number of actions without copies.
  int32_t items() const { return static_cast<int32_t>(items_.size()); }

  struct Window {
    double from = 0, to = 0;
    int32_t first_rank = 0, end_rank = 0;
  };
  /// The MILP of a window, and its variables.
  struct Model {
    Milp milp;
    std::vector<Term> start;                 ///< the present order, as a warm start
    std::vector<int32_t> inside;             ///< the window's items, rank after rank, as listed
    std::vector<std::vector<Choice>> first;  ///< by two of `inside`: whether the one precedes
  };
  /// None if no order in the window is open.
  std::optional<Model> model_of(const Window& window) const;
  /// The schedule with the order that a solution's values describe.
  Schedule schedule_of(const Model& model, const std::vector<double>& values) const;

 private:
  // An action with the copies that stay with it.
  struct Item {
    int32_t rank = 0, action = 0;  // of `linked_`
    int32_t begin = 0, end = 0;    // its actions, with copies
    double duration = 0;
    int64_t need = 0, change = 0;  // the most memory taken while it runs, and in the end
    // Items that wait for it, and the time from start to start.
    std::vector<std::pair<int32_t, double>> next = {};
  };
  struct Around;
  class Writer;

  void make_items();
  void add_memory(Item& item) const;
  void add_waits();
  void sort_items();
  bool is_last(int32_t item) const {
    return item + 1 == items() || items_[item + 1].rank != items_[item].rank;
  }
  Around around(const std::vector<int32_t>& inside) const;

  const Schedule& schedule_;
  const ScheduleCosts& costs_;
  int64_t memory_limit_;
  LinkedActions linked_;
  ScheduleTiming timing_;
  double starts_ = 0;
  std::vector<Item> items_;          // rank after rank, as listed
  std::vector<int32_t> first_item_;  // by rank; one more entry: the number of items
  std::vector<int32_t> item_of_;     // by action
  std::vector<int32_t> sorted_;      // items, each after those that it waits for
};

}  // namespace longspan
