// What a microbatch takes on a pipeline's layers and at its ends. Internal to planner/pipeline.
//
// Simulated with one microbatch and with two, a program gives the time of a forward and of a
// backward among others, and what a step takes besides.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/pipeline/stage_programs.h"
#include "planner/schedule/costs.h"

namespace longspan {

/// Seconds of a microbatch on a layer of one kind, and the layer's part of a step's rest.
struct LayerTimes {
  double forward = 0, backward = 0, rest = 0;
};

/// Times of layers, and of the embedding and the loss at the ends.
struct LayerAndEndTimes {
  std::vector<LayerTimes> layer;  // by kind
  double embedding = 0, embedding_backward = 0, loss = 0;
  std::vector<SliceShare> shares;  // of slices, or of windows of ranks that share attention out, by
                                   // what they take; none for whole sequences
};

LayerAndEndTimes times_of(StagePrograms& programs, const CostModel& cost);

/// Seconds of the ends in a step's rest, on the ranks of the stages; layers come on top.
double rest_of_ends(StagePrograms& programs, const std::vector<int32_t>& ranks);

}  // namespace longspan
