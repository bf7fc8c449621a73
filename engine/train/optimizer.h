// Training hyperparameters that do not affect the program: the learning-rate schedule, AdamW's
// constants, gradient clipping and initial weights.
#pragma once

#include <cstdint>

#include "models/model_spec.h"

namespace longspan {

struct TrainingConfig {
  int64_t steps = 10;
  int64_t warmup_steps = 0;
  double learning_rate = 3e-4;      // peak
  double min_learning_rate = 3e-5;  // at the end of the cosine
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: no clipping
  uint64_t seed = 1;
};

/// Throws bad_input, naming the field, unless every number is finite and in range: steps >= 1,
/// warmup_steps >= 0, 0 <= min_learning_rate <= learning_rate, betas in [0, 1), epsilon > 0,
/// weight_decay and clip_norm >= 0.
void validate(const TrainingConfig& config);

/// Returns the learning rate of `step`, which counts from 1: linear warmup to the peak over
/// warmup_steps, cosine decay to the minimum at `steps`, constant afterwards.
double learning_rate(const TrainingConfig& config, int64_t step);

/// Fills one tensor of the model deterministically from (seed, tensor name). `tensor.init` selects
/// normal(0, 0.02), the same scaled by 1/sqrt(2L) for residual projections, ones, or zeros. The
/// values do not depend on the order of calls. All processors of the calling thread compute.
void initialize_tensor(const ModelSpec& model, const ParameterTensor& tensor, uint64_t seed,
                       float* out);

}  // namespace longspan
