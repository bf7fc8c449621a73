// HelixPipe (arXiv 2507.00394, its repository's schedule): attention has no parameters, so any rank
// can run it. Microbatches go through the layers in groups of as many as there are ranks, and all
// ranks run attention of a group's layer at the same time: while one rank runs the parts with
// parameters for one microbatch after another, the others run attention of earlier ones. Filling
// the pipeline then takes (p-1) times the parts with parameters, however long attention takes.
//
//   Stages 0, 2, 4 ... 2L are the parts between two attentions, of L = v p layers. Stage 2l, after
//   attention of layer l-1 and before that of layer l, is on rank l mod p, and so is its backward.
//   Stage 2l+1 is attention of layer l; for the group's microbatch j it is on rank (l + j + 1) mod
//   p: for the first microbatch the rank that runs its next stage, for the last one the rank of its
//   stage before. A group has `fold` microbatches for each rank, one after another, to send one
//   while the next is computed. The next group's layers follow without a break. Backward is the
//   reverse order: all microbatches are held until then.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "planner/schedule/families/families.h"
#include "planner/schedule/families/lists.h"

namespace longspan {
namespace {

class Helix {
 public:
  Helix(const ScheduleRequest& request, int32_t fold, int32_t rank)
      : p_(request.ranks),
        layers_(request.ranks * request.virtual_stages),
        all_layers_(layers_ * (request.microbatches / request.ranks / fold)),
        fold_(fold),
        rank_(rank) {}

  ActionList forwards() {
    // Layers are numbered through all groups. This rank's first layer is its own number.
    for (int32_t layer = rank_; layer < all_layers_ + p_; layer += p_) {
      for (int32_t j = p_ - 2; j >= 0; --j) {
        for (int32_t fold = 0; fold < fold_; ++fold) {
          attention(layer - 1 - j, j, fold);
          if (j == 0) parameters(layer, j, fold);
        }
      }
      for (int32_t j = std::min(1, p_ - 1); j < p_; ++j) {
        for (int32_t fold = 0; fold < fold_; ++fold) {
          parameters(layer, j, fold);
          if (j == p_ - 1) attention(layer, j, fold);
        }
      }
    }
    return std::move(list_);
  }

 private:
  void attention(int32_t layer, int32_t j, int32_t fold) {
    if (layer < 0 || layer >= all_layers_) return;
    add(2 * (layer % layers_) + 1, layer / layers_, j, fold);
  }

  // The part before this layer's attention; between groups these are two stages.
  void parameters(int32_t layer, int32_t j, int32_t fold) {
    if (layer > all_layers_) return;
    const int32_t group = layer / layers_, stage = 2 * (layer % layers_);
    if (stage == 0 && group > 0) add(2 * layers_, group - 1, j, fold);
    if (layer < all_layers_) add(stage, group, j, fold);
  }

  void add(int32_t stage, int32_t group, int32_t j, int32_t fold) {
    list_.push_back({ActionKind::forward, stage, (group * fold_ + fold) * p_ + j});
  }

  int32_t p_, layers_, all_layers_, fold_, rank_;
  ActionList list_;
};

}  // namespace

Schedule helix(const ScheduleRequest& request) {
  const int32_t p = request.ranks, m = request.microbatches;
  const int32_t fold = request.group > 0 ? request.group : m % (2 * p) == 0 ? 2 : 1;
  if (m % (p * fold) != 0) {
    throw bad_input(
        "helixpipe takes a multiple of {} microbatches, {} for each of {} ranks; got {}", p * fold,
        fold, p, m);
  }
  Schedule schedule = empty_schedule(request, 2 * p * request.virtual_stages + 1);
  schedule.moving_stages = true;
  for (int32_t rank = 0; rank < p; ++rank) {
    ActionList& list = schedule.ranks[rank];
    list = Helix(request, fold, rank).forwards();
    const size_t forwards = list.size();
    list.reserve(2 * forwards);
    for (size_t i = forwards; i-- > 0;) {
      list.push_back(list[i]);
      list.back().kind = ActionKind::backward;
    }
  }
  return schedule;
}

}  // namespace longspan
