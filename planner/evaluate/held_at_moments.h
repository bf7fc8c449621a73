// Microbatches in flight on a rank of a pipeline at the moments of a demand. Internal to
// planner/evaluate.
//
// In a layout a peak needs more than many microbatches in flight: at the same time an op must run
// whose operands are counted. The list of the rank tells how many are in flight then.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/evaluate/demand.h"
#include "planner/schedule/schedule.h"

namespace longspan {

struct HeldAtMoments {
  /// Microbatches in flight, including the one that runs, in units of all layers of the rank. The
  /// loss is on the rank of the last stage, other moments are on that of the first.
  std::array<double, Demand::kMoments> held{};
  /// Whether gradients of earlier microbatches are held as well.
  bool accumulates = true;
};

/// REQUIRES: lists of F and B of whole sequences. `layers`: by stage.
HeldAtMoments held_in_lists(const Schedule& schedule, const std::vector<int64_t>& layers);

}  // namespace longspan
