// A pipeline schedule: for every rank the list of what it does, in order.
//
// A schedule is only an order: it knows no times (costs.h has them) and says nothing twice. Which
// rank holds a stage follows from where the stage's actions are; what an action waits for follows
// from the grammar (dependencies.h). Plain values; the maker owns them.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/actions.h"

namespace longspan {

struct Schedule {
  /// Stages that a microbatch passes, first to last; with v virtual stages on each of p ranks, v*p.
  int32_t stages = 1;
  /// Copies of the model whose microbatches are their own: the stages of copy k are numbered from
  /// k * stages. One, except where a schedule feeds microbatches from both ends.
  int32_t pipes = 1;
  int32_t microbatches = 1;  ///< of each pipe
  int32_t slices = 1;        ///< of a microbatch's sequence
  /// Where the vocabulary is cut: the last stage's backward waits for every T, not only every S.
  bool input_gradient_in_t = false;
  /// A slice offloads only as much as the forward of the next one hides.
  bool adaptive_offload = false;
  /// Ranks do stages whose parameters are not theirs: of one stage, microbatches and slices may be
  /// on different ranks, and parts of them.
  bool moving_stages = false;
  std::vector<std::vector<Action>> ranks;

  /// Whether there are a stage, a microbatch and a slice of the action's numbers.
  bool contains(const Action& a) const {
    return a.stage >= 0 && a.stage < all_stages() && a.microbatch >= 0 &&
           a.microbatch < microbatches && a.slice >= 0 && a.slice < slices;
  }
  int32_t all_stages() const { return stages * pipes; }
  bool is_first(int32_t stage) const { return stage % stages == 0; }
  bool is_last(int32_t stage) const { return stage % stages == stages - 1; }
  /// By stage, the rank that has its forwards. REQUIRES: stages do not move.
  std::vector<int32_t> ranks_of_stages() const;
};

}  // namespace longspan
