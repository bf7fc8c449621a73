// What a reference implementation keeps on a GPU: states of the parameters and what the layers save
// between forward and backward, micro-batches in flight included.
#pragma once

#include "planner/reference/case.h"
#include "planner/reference/stack.h"

namespace longspan {

/// Bytes of tensors on the first stage, which has the most micro-batches in flight.
struct RunMemory {
  double states = 0;       // parameters, gradients, optimizer
  double activations = 0;  // saved by the layers
  double ends = 0;  // what the loss takes more than a layer at work, where the first stage is last
  double tensors() const { return states + activations + ends; }
};

/// REQUIRES: as run_time(). Layers save what arXiv 2205.05198, section 4, counts for the GPT of
/// Megatron-LM, written for any widths: 34 s b h + 5 a s^2 b bytes where a tensor group cuts
/// nothing, MLP and heads are as wide as the model, and scores are stored.
RunMemory run_memory(const ReferenceCase& reference, const ModelSpec& model, const Stack& stack);

}  // namespace longspan
