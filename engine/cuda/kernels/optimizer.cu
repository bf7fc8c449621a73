#include "engine/cuda/kernels/optimizer.h"

#include <cmath>

#include "engine/cuda/kernels/sums.cuh"
#include "engine/cuda/launch.h"

namespace longspan::cuda {

void sum_of_squares(const Queue& queue, const float* g, int64_t n, double* sum) {
  add_sum(
      queue, n, queue.scratch,
      [=] LONGSPAN_BODY(int64_t i) { return static_cast<double>(g[i]) * g[i]; }, 1, sum);
}

void adamw(const Queue& queue, const AdamWStep& step, const double* norm_squared, const float* g,
           int64_t n, float* p, float* m, float* v, bfloat16* narrowed) {
  Fault* fault = queue.fault;
  for_each(queue, n, [=] LONGSPAN_BODY(int64_t i) {
    const double norm = sqrt(*norm_squared);
    if (!finite(norm)) {
      if (i == 0) *fault = {Fault::Kind::gradient_norm, 0};
      return;
    }
    const bool clips = step.clip_norm > 0 && norm > step.clip_norm;
    const float gradient = g[i] * (clips ? static_cast<float>(step.clip_norm / norm) : 1.0F);
    const float mean = step.beta1 * m[i] + (1 - step.beta1) * gradient;
    const float square = step.beta2 * v[i] + (1 - step.beta2) * gradient * gradient;
    const float change = step.rate * mean / (sqrtf(square) * step.root_scale + step.epsilon);
    m[i] = mean;
    v[i] = square;
    p[i] = step.keep * p[i] - change;
    if (narrowed != nullptr) narrowed[i] = from_float<bfloat16>(p[i]);
  });
}

}  // namespace longspan::cuda
