// Builds the list of a rank with two stages. Internal to planner/schedule.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "planner/schedule/families/lists.h"

namespace longspan {

/// Microbatches pass each stage in order. Postponed weight gradients run in the order of their
/// input gradients, over both stages. A parameter `stage` is 0 or 1, the position in the
/// constructor.
class TwoStageList {
 public:
  TwoStageList(int32_t first, int32_t second) : stages_{first, second} {}

  /// F of the stage's next microbatch; `with_next`: runs as one with the next action.
  void forward(int stage, bool with_next = false) {
    list_.push_back({ActionKind::forward, stages_[stage], forwards_[stage]++, 0, with_next});
  }
  void backward(int stage) { add_backward(ActionKind::backward, stage); }
  /// I; a later weight() adds its W.
  void input(int stage) {
    add_backward(ActionKind::backward_input, stage);
    weights_.push_back(list_.back());
  }
  /// W of the first input() without one. REQUIRES: there is such an input().
  void weight() {
    assert(weights_done_ < weights_.size());
    list_.push_back(weights_[weights_done_++]);
    list_.back().kind = ActionKind::backward_weight;
  }

  ActionList take() { return std::move(list_); }

 private:
  void add_backward(ActionKind kind, int stage) {
    list_.push_back({kind, stages_[stage], backwards_[stage]++});
  }

  int32_t stages_[2];
  int32_t forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  ActionList list_, weights_;
  size_t weights_done_ = 0;
};

}  // namespace longspan
