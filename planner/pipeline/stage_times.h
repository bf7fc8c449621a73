// Times of a microbatch on a pipeline's layers and at its ends. Internal to planner/pipeline.
//
// Simulations of a program with one microbatch and with two give the time of a forward and of a
// backward among others, and the rest of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/pipeline/stage_programs.h"
#include "planner/schedule/costs.h"

namespace longspan {

/// Seconds of a microbatch on a layer of one kind, and the layer's part of the rest of a step.
struct LayerTimes {
  double forward = 0, backward = 0, rest = 0;
  double weights = 0;              // of the backward: the gradients of weights
  double offload = 0, reload = 0;  // copies of what the forward saves on the device
};

/// Seconds of a microbatch on one rank's share of a cut vocabulary, each op alone. `first_stage`,
/// `last_stage` and `last_stage_backward` are parts of the forward and backward of these stages.
struct VocabularyTimes {
  double forward = 0, backward = 0;              // S, T
  double embedding = 0, embedding_backward = 0;  // E, G
  double first_stage = 0, last_stage = 0, last_stage_backward = 0;
};
VocabularyTimes vocabulary_times(const StepRequest& request, bool gradient_in_t, int64_t rank,
                                 const CostModel& cost);

/// Times of layers, and of the embedding and the loss at the ends; without ends if they are cut
/// over all ranks.
struct LayerAndEndTimes {
  std::vector<LayerTimes> layer;  // by kind
  double embedding = 0, embedding_backward = 0, loss = 0;
  std::vector<SliceShare> shares;  // by time, of slices, or of windows of ranks that divide
                                   // attention; empty for whole sequences
};

LayerAndEndTimes times_of(StagePrograms& programs, const CostModel& cost);

/// Seconds that the ends add to the rest of a step. `ranks`: the rank of every stage.
double rest_of_ends(StagePrograms& programs, const std::vector<int32_t>& ranks);

}  // namespace longspan
