// Microbatches in flight on a rank of a pipeline at the peak moments of a Demand (demand.h).
// Internal to planner/evaluate.
//
// Memory peaks while particular ops run, so the largest number of microbatches in flight alone
// overestimates the peak. The rank's list of actions says how many are in flight when those ops
// run.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/evaluate/demand.h"
#include "planner/schedule/schedule.h"

namespace longspan {

struct HeldAtMoments {
  /// Microbatches in flight on all layers of the rank, and the one that runs. The moment of the
  /// loss is on the rank of the last stage; all other moments are on the rank of the first.
  std::array<double, Demand::kMoments> held{};
  /// Whether all stages of the rank hold gradients of earlier microbatches at these moments.
  bool accumulates = true;
};

/// REQUIRES: the schedule has only actions F and B, without slices. layers[s]: the layers of stage
/// s.
HeldAtMoments held_in_lists(const Schedule& schedule, const std::vector<int64_t>& layers);

/// The same for slices of `tokens`. All moments are those of a sequence's last slice: gradients of
/// all earlier keys and values follow it, so memory peaks there. Held is that slice, and all of the
/// others by tokens and layers.
HeldAtMoments held_in_sliced_lists(const Schedule& schedule, const std::vector<int64_t>& layers,
                                   const std::vector<int64_t>& tokens);

}  // namespace longspan
