// ZB-V as a static list, the one of PyTorch: made for F = I = W and for enough microbatches to fill
// the pipeline (2p-1). With fewer microbatches the rest of the list is left out.
#include <algorithm>
#include <utility>

#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

using Kind = ActionKind;

class StaticList {
 public:
  StaticList(const ScheduleRequest& request, int32_t rank)
      : stages_{v_stage(request, rank, 0), v_stage(request, rank, 1)},
        ranks_(request.ranks),
        rank_(rank),
        wanted_(request.microbatches),
        all_(std::max(request.microbatches, 2 * request.ranks - 1)) {}

  ActionList run() {
    const int32_t behind = ranks_ - rank_;
    for (int32_t i = 0; i < 2 * behind - 1; ++i) add(Kind::forward, 0);
    for (int32_t i = 0; i < rank_; ++i) {
      add(Kind::forward, 1);
      add(Kind::forward, 0);
    }
    for (int32_t i = 0; i < behind; ++i) turn_round();
    while (done(Kind::forward, 1) < all_) {
      if (done(Kind::forward, 0) < all_) add(Kind::forward, 0);
      add(Kind::backward_input, 0);
      add(Kind::backward_weight, 0);
      turn_round();
    }
    for (int32_t i = 0; i < rank_; ++i) {
      add(Kind::backward_input, 0);
      add(Kind::backward_input, 1);
    }
    for (int32_t i = 0; i < behind; ++i) {
      add(Kind::backward_input, 0);
      add(Kind::backward_weight, 0);
    }
    while (done(Kind::backward_weight, 1) < all_) add(Kind::backward_weight, 1);
    while (done(Kind::backward_weight, 0) < all_) add(Kind::backward_weight, 0);
    return std::move(list_);
  }

 private:
  void turn_round() {
    for (const Kind kind : {Kind::forward, Kind::backward_input, Kind::backward_weight}) {
      add(kind, 1);
    }
  }

  int32_t& done(Kind kind, int chunk) { return done_[static_cast<size_t>(kind)][chunk]; }

  void add(Kind kind, int chunk) {
    const int32_t m = done(kind, chunk)++;
    if (m < wanted_) list_.push_back({kind, stages_[chunk], m});
  }

  int32_t stages_[2];
  int32_t ranks_, rank_, wanted_, all_;
  int32_t done_[kActionKindCount][2] = {};
  ActionList list_;
};

}  // namespace

Schedule zb_v_static(const ScheduleRequest& request) {
  Schedule schedule = empty_schedule(request, 2 * request.ranks);
  for (int32_t rank = 0; rank < request.ranks; ++rank) {
    schedule.ranks[rank] = StaticList(request, rank).run();
  }
  return schedule;
}

}  // namespace longspan
