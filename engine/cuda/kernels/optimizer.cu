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

template <class Parameter, class Moment>
void adamw(const Queue& queue, const AdamWStep& step, const double* norm_squared, const float* g,
           int64_t n, Parameter* p, Moment* m, Moment* v, bfloat16* narrowed) {
  Fault* fault = queue.fault;
  // The factor that clips, once for all elements; NaN if the norm is not finite.
  float* factor = reinterpret_cast<float*>(queue.scratch);
  for_each(queue, 1, [=] LONGSPAN_BODY(int64_t) {
    const double norm = norm_squared != nullptr ? sqrt(*norm_squared) : step.norm_before;
    const bool clips = step.clip_norm > 0 && norm > step.clip_norm;
    *factor = !finite(norm) ? NAN : clips ? static_cast<float>(step.clip_norm / norm) : 1.0F;
    if (!finite(norm)) *fault = {Fault::Kind::gradient_norm, 0};
  });
  const bool packs = in_packs({}, {g, p, m, v, narrowed});
  for_each_pack(queue, packs, 1, n, [=] LONGSPAN_BODY(auto lanes, int64_t, int64_t i) {
    const float scale = *factor;
    if (!finite(scale)) return;
    float gradient[lanes.value], mean[lanes.value], square[lanes.value], parameter[lanes.value];
    load(g + i, gradient);
    load(m + i, mean);
    load(v + i, square);
    load(p + i, parameter);
    for (int k = 0; k < lanes.value; ++k) {
      const float scaled = gradient[k] * scale;
      mean[k] = step.beta1 * mean[k] + (1 - step.beta1) * scaled;
      square[k] = step.beta2 * square[k] + (1 - step.beta2) * scaled * scaled;
      const float change =
          quotient(step.rate * mean[k], root(square[k]) * step.root_scale + step.epsilon);
      parameter[k] = step.keep * parameter[k] - change;
    }
    store(mean, m + i);
    store(square, v + i);
    store(parameter, p + i);
    if (narrowed != nullptr) store(parameter, narrowed + i);
  });
}
template void adamw(const Queue&, const AdamWStep&, const double*, const float*, int64_t, float*,
                    float*, float*, bfloat16*);
template void adamw(const Queue&, const AdamWStep&, const double*, const float*, int64_t, float*,
                    bfloat16*, bfloat16*, bfloat16*);
template void adamw(const Queue&, const AdamWStep&, const double*, const float*, int64_t, bfloat16*,
                    float*, float*, bfloat16*);
template void adamw(const Queue&, const AdamWStep&, const double*, const float*, int64_t, bfloat16*,
                    bfloat16*, bfloat16*, bfloat16*);

}  // namespace longspan::cuda
