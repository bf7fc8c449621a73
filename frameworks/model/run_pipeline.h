// A published run whose case names a pipeline schedule. Every action of the schedule is simulated,
// in place of the closed forms of the bubble and of the microbatches in flight.
//
// The schedule decides the stages of a rank. If it cuts the vocabulary, all ranks share embedding
// and output layer. After every forward the case's share of the activations is offloaded; if the
// schedule offloads by itself and the case names no share, all that may be is. Pure functions; safe
// from any thread.
#pragma once

#include <vector>

#include "frameworks/model/partition.h"
#include "frameworks/model/stack.h"
#include "frameworks/training_run.h"
#include "models/model_spec.h"
#include "planner/schedule/costs.h"

namespace longspan {

/// Seconds of one microbatch in one layer, and in the ends of the model.
struct MicrobatchSeconds {
  StageTimes layer;                // gradients of inputs include their recomputation
  double recomputed = 0;           // in addition, of a layer that is recomputed in full
  double embedding = 0, head = 0;  // forward and backward; one rank's head if it is cut
  double besides = 0;              // of a slice on a stage, in addition to its layers
  double hop = 0;                  // from the end of a slice's action to the next stage
  double stop = 0;                 // how long the sending rank stops
  double offload = 0, reload = 0;  // copies of all that a layer keeps, on the link
};

struct RunPipeline {
  double seconds = 0;        // from the first action to the last of the rank that takes longest
  double busy = 0;           // the busiest rank's computation in that time
  std::vector<double> held;  // microbatches that a rank holds at its peak, slices as parts of them
  std::vector<double> away;  // the most of these on the rank's host
  std::vector<ModelEnds> ends;  // per rank
  std::vector<double> layers;   // per rank
};

/// REQUIRES: the run names a schedule and its microbatch is known. Throws bad_input where there
/// is no such schedule of these numbers.
RunPipeline run_pipeline(const TrainingRun& run, const ModelSpec& model, const Stack& stack,
                         const MicrobatchSeconds& seconds);

}  // namespace longspan
