// The moments of a training step at which a GPU's memory can be fullest.
#pragma once

#include <cstdint>

namespace longspan {

enum class StepMoment : uint8_t {
  forward_pass,    // of all models, before the updates of reinforcement learning
  reference,       // the forward of a frozen copy of the model, after the model's own
  forward_end,     // the loss has been computed
  loss,            // the loss is differentiated
  last_mlp,        // backward of the last layer: its MLP ...
  last_attention,  // ... and its attention
  first_mlp,       // likewise of the first layer
  first_attention,
  backward_end,  // the gradient of the embedding, last of all
  update,        // the optimizer's
};

/// Whether a layer is running backward.
inline bool in_layer(StepMoment m) {
  return m >= StepMoment::last_mlp && m <= StepMoment::first_attention;
}
inline bool in_last_layer(StepMoment m) {
  return m == StepMoment::last_mlp || m == StepMoment::last_attention;
}
inline bool in_first_layer(StepMoment m) {
  return m == StepMoment::first_mlp || m == StepMoment::first_attention;
}
inline bool in_attention(StepMoment m) {
  return m == StepMoment::last_attention || m == StepMoment::first_attention;
}

/// "the loss", "the last layer's backward".
const char* name_of(StepMoment moment);

}  // namespace longspan
