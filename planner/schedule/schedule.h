// A pipeline schedule: for every rank the ordered list of its actions.
//
// A schedule is only an order, without times (those are in costs.h) or redundant data. The rank of
// a stage follows from where its actions are, the dependencies of an action from the grammar
// (dependencies.h). Plain values; the maker owns them.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/actions.h"

namespace longspan {

struct Schedule {
  /// Stages that a microbatch passes, first to last: v*p with v virtual stages on each of p ranks.
  int32_t stages = 1;
  /// Copies of the model, each with its own microbatches; the stages of copy k start at k * stages.
  /// One, except in schedules that feed microbatches from both ends.
  int32_t pipes = 1;
  int32_t microbatches = 1;  ///< of each pipe
  int32_t slices = 1;        ///< of a microbatch's sequence
  /// With a cut vocabulary: the last stage's backward waits for every T, not only every S.
  bool input_gradient_in_t = false;
  /// By stage, microbatch and slice: the share of what F saves that OFFLOAD moves, 0 to 1. Empty:
  /// all of it.
  std::vector<double> offloaded_shares;
  /// Ranks also run stages whose parameters they do not own: microbatches and slices of one stage,
  /// or parts of them, may be on different ranks.
  bool moving_stages = false;
  std::vector<std::vector<Action>> ranks;

  /// Whether the action's stage, microbatch and slice exist.
  bool contains(const Action& a) const {
    return a.stage >= 0 && a.stage < all_stages() && a.microbatch >= 0 &&
           a.microbatch < microbatches && a.slice >= 0 && a.slice < slices;
  }
  int32_t all_stages() const { return stages * pipes; }
  bool is_first(int32_t stage) const { return stage % stages == 0; }
  bool is_last(int32_t stage) const { return stage % stages == stages - 1; }
  /// Whether any list has an action of this kind.
  bool has(ActionKind kind) const;
  /// By stage: the rank that runs its forwards. REQUIRES: stages do not move.
  std::vector<int32_t> ranks_of_stages() const;
  /// The share of what F of the action's stage, microbatch and slice saves that OFFLOAD moves.
  double offloaded_share(const Action& a) const {
    if (offloaded_shares.empty()) return 1;
    const int64_t before = (int64_t{a.stage} * microbatches + a.microbatch) * slices;
    return offloaded_shares[static_cast<size_t>(before + a.slice)];
  }
};

}  // namespace longspan
