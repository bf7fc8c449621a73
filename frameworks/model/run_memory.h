// GPU memory of a framework. It is fullest at one of a few moments of a step, and the memory of
// each is the sum of the same parts: states of the parameters, what FSDP has gathered, and tensors
// that layers save between forward and backward, microbatches in flight included, or hold while
// they run.
#pragma once

#include <string_view>
#include <vector>

#include "frameworks/model/layer_memory.h"
#include "frameworks/model/run_pipeline.h"
#include "frameworks/model/stack.h"
#include "frameworks/model/step_moment.h"
#include "frameworks/training_run.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"

namespace longspan {

/// Bytes of tensors on the fullest stage at its fullest moment: the first stage has the most
/// microbatches in flight, the last the logits.
struct RunMemory {
  StepMoment moment = StepMoment::loss;
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double gathered = 0;    // parameters and buckets that ZeRO 3 or FSDP holds for the running layers
  double saved = 0;       // between forward and backward, by the layers
  double work = 0;        // while one layer runs backward, or the update
  double loss = 0;        // logits and their gradients
  double passing = 0;     // gradients handed on, and placeholders for those of weights
  double workspaces = 0;  // of libraries, among the tensors
  double away = 0;        // activations on the host instead, at the peak
  /// What pools of other streams had at another moment of the step: the allocator does not give it
  /// back.
  double pooled = 0;
  double buffers = 0;  // of groups of ranks; libraries take them past the allocator
  /// The most tensors before the first step; until the optimizer runs for the first time, and while
  /// it does: less than tensors() where its states are made then.
  double at_start = 0, before_update = 0, in_update = 0;
  /// What models that do not run at the moment hold, in the order of their roles.
  struct Held {
    std::string_view model;  // "reference"
    double bytes = 0;
  };
  std::vector<Held> others;
  double contexts = 0;     // of their own processes
  double waiting = 0;      // bytes of models that wait on the host instead
  bool of_critic = false;  // whether a critic runs, not the model that the run trains

  double states() const { return parameters + gradients + optimizer + gathered; }
  double activations() const { return saved + work; }
  double held() const;  // by the other models
  double tensors() const { return states() + activations() + loss + passing + workspaces + held(); }
};

/// REQUIRES: as run_time(). `known`: as there.
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
