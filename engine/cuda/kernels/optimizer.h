// AdamW and the gradient norm, elementwise over parameter units.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// *sum += the sum of g[i]^2, in double.
void sum_of_squares(const Queue&, const float* g, int64_t n, double* sum);

/// One AdamW update (bias-corrected moments, decoupled weight decay), with the constants
/// precomputed for its step.
struct AdamWStep {
  float beta1 = 0, beta2 = 0;
  float rate = 0;        // learning rate / (1 - beta1^t)
  float root_scale = 1;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
  float keep = 1;  // 1 - learning rate * weight decay
  double clip_norm = 0;
  double norm_before = 0;  // clips if there is no norm of this step
};

/// Updates p, m, v[n] from g[n] clipped by the norm of all gradients, sqrt(*norm_squared), or by
/// that of the step before if `norm_squared` is null, in float, and rounds them to their types,
/// float or bfloat16. `narrowed`, if not null, is p rounded. If the norm is not finite: a fault,
/// and no update.
template <class Parameter, class Moment>
void adamw(const Queue&, const AdamWStep&, const double* norm_squared, const float* g, int64_t n,
           Parameter* p, Moment* m, Moment* v, bfloat16* narrowed);

}  // namespace longspan::cuda
