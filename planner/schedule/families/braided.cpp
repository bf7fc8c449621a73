// STP, synergistic tensor and pipeline parallelism (arXiv 2510.27257, its repository's schedule):
// stages in a V, and two computations of a rank braided into one, so that the all-reduces of tensor
// parallelism of one run beside the products of the other. Forwards are braided with forwards, with
// gradients of weights while the pipeline fills, and with backwards; 3p chunks on every rank,
// bubble (p-1)(F+I-W) chunks.
#include <utility>

#include "base/error.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

using Kind = ActionKind;

class BraidedList {
 public:
  BraidedList(int32_t down, int32_t up) : stages_{down, up} {}

  // Chunk 0 is the stage on the way down, 1 the one on the way up.
  void forward(int chunk, bool braided = false) {
    list_.push_back({Kind::forward, stages_[chunk], forwards_[chunk]++, 0, braided});
  }
  /// `later`: the gradients of its weights come with a weight() of their own.
  void backward(int chunk, bool later = false) {
    list_.push_back(
        {later ? Kind::backward_input : Kind::backward, stages_[chunk], backwards_[chunk]++});
    if (later) weights_.push_back(list_.back());
  }
  void weight() {
    list_.push_back(weights_[done_++]);
    list_.back().kind = Kind::backward_weight;
  }

  ActionList take() { return std::move(list_); }

 private:
  int32_t stages_[2];
  int32_t forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  ActionList list_, weights_;
  size_t done_ = 0;
};

}  // namespace

Schedule braided(const ScheduleRequest& request) {
  const int32_t p = request.ranks, m = request.micro_batches;
  if (m < 3 * p) {
    throw bad_input("stp of {} ranks takes {} microbatches or more; got {}", p, 3 * p, m);
  }
  Schedule schedule = empty_schedule(request, 2 * p);
  for (int32_t rank = 0; rank < p; ++rank) {
    BraidedList list(v_stage(request, rank, 0), v_stage(request, rank, 1));
    const int32_t beyond = p - 1 - rank;  // ranks between this one and the turn
    for (int32_t i = 0; i < 2 * beyond; ++i) list.forward(0);
    for (int32_t i = 0; i <= rank; ++i) {
      list.forward(0);
      list.forward(1);
    }
    // In pairs, the odd one first.
    for (int32_t left = rank + 1; left > 0; --left) list.forward(0, left % 2 == 0);
    for (int32_t i = 0; i < beyond; ++i) {
      list.forward(1, true);
      list.backward(1, true);
      list.forward(0, true);
      list.weight();
    }
    const int32_t steady = 2 * (m - 3 * p + 1) + 1 + 2 * rank;
    for (int32_t i = 0; i < steady; ++i) {
      const int chunk = 1 - i % 2;
      list.forward(chunk, true);
      list.backward(chunk, i >= steady - rank);
    }
    for (int32_t i = 0; i < 2 * p - 2 - rank; ++i) {
      list.backward(0);
      list.forward(1, true);
      list.backward(1, true);
    }
    for (int32_t i = 0; i <= rank; ++i) {
      list.backward(0);
      list.backward(1);
    }
    for (int32_t i = 0; i <= beyond; ++i) {
      list.backward(0);
      if (i == beyond) break;
      list.weight();
      list.weight();
    }
    for (int32_t i = 0; i < 2 * rank; ++i) list.weight();
    schedule.ranks[rank] = list.take();
  }
  return schedule;
}

}  // namespace longspan
