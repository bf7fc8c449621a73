// What a reference implementation keeps on a GPU: states of the parameters and what the layers save
// between forward and backward, micro-batches in flight included.
#pragma once

#include "hwprofiles/hardware_profile.h"
#include "planner/reference/case.h"
#include "planner/reference/stack.h"

namespace longspan {

/// Bytes of tensors on the first stage, which has the most micro-batches in flight.
struct RunMemory {
  double states = 0;       // parameters, gradients, optimizer; what of them FSDP has gathered
  double activations = 0;  // saved by the layers
  double ends = 0;         // embedding and loss, where the first stage is the last too
  double tensors() const { return states + activations + ends; }
};

/// REQUIRES: as run_time(). Layers save what arXiv 2205.05198, section 4, counts for the GPT of
/// Megatron-LM, written for any widths: 34 s b h + 5 a s^2 b bytes where a tensor group cuts
/// nothing, MLP and heads are as wide as the model, and scores are stored. The loss has gone when
/// the last layer's backward begins, so of both only the larger counts.
RunMemory run_memory(const ReferenceCase& reference, const ModelSpec& model,
                     const HardwareProfile& hw, const Stack& stack);

}  // namespace longspan
