// A published run whose case names a pipeline schedule: the schedule itself, every action
// simulated, in place of the closed form of its bubble and of the microbatches in flight.
//
// Which stages a rank has follows from the schedule. Where it cuts the vocabulary, embedding and
// output layer are shared out to all ranks. Of activations the case's share leaves after every
// forward, or all that may where the schedule offloads by itself and the case names no share. Pure
// functions; safe from any thread.
#pragma once

#include <vector>

#include "planner/reference/case.h"
#include "planner/reference/partition.h"
#include "planner/reference/stack.h"
#include "planner/schedule/costs.h"

namespace longspan {

/// Seconds of a microbatch of one layer, and of the ends of the model.
struct MicrobatchSeconds {
  StageTimes layer;                // gradients of inputs with what is recomputed for them
  double recomputed = 0;           // of a layer that is recomputed in full, on top
  double embedding = 0, head = 0;  // forward and backward; the head's of one rank where it is cut
  double besides = 0;              // of a slice on a stage, whatever the stage has
  double hop = 0;                  // from the end of a slice's action to the next stage
  double stop = 0;                 // of the rank that sends it
  double offload = 0, reload = 0;  // of all that a layer keeps, on the link
};

struct RunPipeline {
  double seconds = 0;        // from the first action to the last of the rank that takes longest
  double busy = 0;           // of which the busiest rank computes
  std::vector<double> held;  // microbatches that a rank holds at its peak, slices as parts of them
  std::vector<double> away;  // at most, of these on its host
  std::vector<ModelEnds> ends;  // of a rank
  std::vector<double> layers;   // of a rank
};

/// REQUIRES: the case names a schedule and its microbatch is known. Throws bad_input where there
/// is no such schedule of these numbers.
RunPipeline run_pipeline(const ReferenceCase& reference, const ModelSpec& model, const Stack& stack,
                         const MicrobatchSeconds& seconds);

}  // namespace longspan
