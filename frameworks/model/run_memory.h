// GPU memory of a framework: states of the parameters, and tensors that the layers
// save between forward and backward, microbatches in flight included.
#pragma once

#include "frameworks/model/layer_work.h"
#include "frameworks/model/run_pipeline.h"
#include "frameworks/model/stack.h"
#include "frameworks/training_run.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"

namespace longspan {

/// Bytes of tensors on the fullest stage: the first has the most microbatches in flight, the last
/// the logits.
struct RunMemory {
  double parameters = 0;  // of frozen copies, too
  double gradients = 0;
  double optimizer = 0;
  double gathered = 0;  // parameters and buckets that ZeRO 3 or FSDP holds for the running layers
  double saved = 0;     // between forward and backward, by the layers
  double work = 0;      // while one layer runs backward
  double loss = 0;      // logits and their gradients, beyond what a layer's work has freed
  double passing = 0;   // gradients handed on, and placeholders for those of weights
  double away = 0;      // activations on the host instead, at the peak
  /// What pools of other streams had at another moment of the step: the allocator does not give it
  /// back.
  double pooled = 0;
  double buffers = 0;  // of groups of ranks; libraries take them past the allocator
  double states() const { return parameters + gradients + optimizer + gathered; }
  double activations() const { return saved + work; }
  double tensors() const { return states() + activations() + loss + passing; }
};

/// REQUIRES: as run_time(). Layers save what arXiv 2205.05198, section 4, counts for the GPT of
/// Megatron-LM, written for any widths: 34 s b h + 5 a s^2 b bytes where a tensor group cuts
/// nothing, MLP and heads are as wide as the model, and scores are stored. The loss is freed when
/// the last layer's backward begins, so the larger of the two counts, not both. With a fused kernel
/// the list has one number for each row of scores, and no masks: inputs of norms and products,
/// queries, keys and values, attention's output, and the MLP's inner width before and after the
/// activation, which Transformer Engine saves, too. `known`: as in run_time().
RunMemory run_memory(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                     const Stack& stack, const RunPipeline* known = nullptr);

/// Bytes that one layer saves for one microbatch, nothing recomputed.
double saved_layer_bytes(const ModelSpec& model, const Stack& stack, const LayerShape& shape);

/// Bytes that a layer of the first stage keeps on average for one microbatch, with the case's
/// recomputation. REQUIRES: as run_time().
double kept_layer_bytes(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                        const Stack& stack);

/// Bytes that the allocator takes for the tensors.
double reserved_bytes(const RunMemory& memory, const Stack& stack);

/// Bytes in use on such a GPU: what the allocator takes, context and libraries.
double device_bytes(const RunMemory& memory, const Stack& stack);

}  // namespace longspan
