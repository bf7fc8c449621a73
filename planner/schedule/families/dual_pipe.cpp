// DualPipe and DualPipeV (DeepSeek-V3, arXiv 2412.19437; DualPipe's README): a forward and a
// backward of opposite directions run as one, so that the exchanges of one are hidden by the
// other's computation.
//
//   DualPipe: two copies of the model, whose microbatches enter at either end of the ranks.
//   DualPipeV: the same cut in half and folded: one copy, two stages on each rank in a V.
//
// Bubble (s/2-1)(F&B + B - 3W) with s stages in the way of a microbatch, s + 1 stages' activations
// on every rank.
#include <utility>

#include "base/error.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

using Kind = ActionKind;

// One rank's list, rank `near` of `ranks` counted from where direction 0 enters to where it turns
// or meets the other half. Direction 0 has `stages[0]` on this rank, direction 1 the other.
class DualList {
 public:
  DualList(int32_t ranks, int32_t near, int32_t micro_batches, std::pair<int32_t, int32_t> stages)
      : ranks_(ranks), near_(near), m_(micro_batches), stages_{stages.first, stages.second} {}

  ActionList run() {
    const int32_t beyond = ranks_ - 1 - near_;  // ranks between this one and the turn
    for (int32_t i = 0; i < 2 * beyond; ++i) forward(0);
    for (int32_t i = 0; i <= near_; ++i) {
      forward(0);
      forward(1);
    }
    for (int32_t i = 0; i < beyond; ++i) {
      input(1);
      weight();
      forward(1);
    }
    for (int32_t i = 0; i < m_ - 2 * ranks_ + near_ + 1; ++i) {
      // At the turn the first backward needs the end of the forward beside it.
      forward(0, i > 0 || beyond > 0);
      backward(1);
      forward(1, true);
      backward(0);
    }
    for (int32_t i = 0; i < beyond; ++i) {
      backward(1);
      forward(1, true);
      backward(0);
    }
    // The later half of these leaves its weights for the bubbles at the end.
    for (int32_t i = 0; i < 2 * (near_ + 1); ++i) {
      const int direction = 1 - i % 2;
      if (i > near_) {
        input(direction);
      } else {
        backward(direction);
      }
    }
    for (int32_t i = 0; i < beyond; ++i) {
      weight();
      input(0);
    }
    for (int32_t i = 0; i <= near_; ++i) weight();
    return std::move(list_);
  }

 private:
  void forward(int direction, bool with_next = false) {
    list_.push_back({Kind::forward, stages_[direction], forwards_[direction]++, 0, with_next});
  }
  void backward(int direction) {
    list_.push_back({Kind::backward, stages_[direction], backwards_[direction]++});
  }
  void input(int direction) {
    backward(direction);
    list_.back().kind = Kind::backward_input;
    weights_.push_back(list_.back());
  }
  void weight() {
    list_.push_back(weights_[next_weight_++]);
    list_.back().kind = Kind::backward_weight;
  }

  int32_t ranks_, near_, m_;
  int32_t stages_[2];
  int32_t forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  ActionList list_, weights_;
  size_t next_weight_ = 0;
};

}  // namespace

Schedule dual_pipe_v(const ScheduleRequest& request) {
  const int32_t p = request.ranks, m = request.micro_batches;
  if (m < 2 * p) {
    throw bad_input("dualpipe-v of {} ranks takes {} microbatches or more; got {}", p, 2 * p, m);
  }
  Schedule schedule = empty_schedule(request, 2 * p);
  for (int32_t rank = 0; rank < p; ++rank) {
    schedule.ranks[rank] =
        DualList(p, rank, m, {v_stage(request, rank, 0), v_stage(request, rank, 1)}).run();
  }
  return schedule;
}

Schedule dual_pipe(const ScheduleRequest& request) {
  const int32_t p = request.ranks, m = request.micro_batches;
  if (p % 2 != 0 || m % 2 != 0 || m < 2 * p) {
    throw bad_input(
        "dualpipe takes an even number of ranks and an even number of microbatches, twice the "
        "ranks or more; got {} ranks and {} microbatches",
        p, m);
  }
  Schedule schedule = empty_schedule(request, p);
  schedule.pipes = 2;
  schedule.micro_batches = m / 2;
  for (int32_t rank = 0; rank < p; ++rank) {
    const int32_t far = p - 1 - rank;
    const int32_t of_first = rank, of_second = p + far;  // stages of either copy on this rank
    schedule.ranks[rank] = rank < far ? DualList(p / 2, rank, m / 2, {of_first, of_second}).run()
                                      : DualList(p / 2, far, m / 2, {of_second, of_first}).run();
  }
  return schedule;
}

}  // namespace longspan
