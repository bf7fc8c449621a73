#include "engine/cuda/kernels/attention_glue.h"

#include <cmath>

#include "engine/cuda/launch.h"

namespace longspan::cuda {

void spread_statistics(const Queue& queue, const float* statistics, int64_t n, int64_t heads,
                       float* lse, int64_t stride) {
  for_each(queue, n * heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / heads, head = at % heads;
    lse[row * stride + head] = statistics[head * n + row];
  });
}

void gather_statistics(const Queue& queue, const float* lse, int64_t stride, int64_t n,
                       int64_t heads, float* statistics) {
  for_each(queue, n * heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / heads, head = at % heads;
    statistics[head * n + row] = lse[row * stride + head];
  });
}

void merge_partial(const Queue& queue, const bfloat16* partial, const float* statistics, int64_t n,
                   int64_t heads, int64_t dim, bool first, float* sum, bfloat16* o,
                   int64_t o_stride, float* lse, int64_t lse_stride) {
  const int64_t width = heads * dim;
  for_each(queue, n * width, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / width, j = at % width, head = j / dim;
    float value = to_float(partial[at]);
    if (!first) {
      const float a = lse[row * lse_stride + head], b = statistics[head * n + row];
      const float top = fmaxf(a, b);
      const float weight_a = expf(a - top), weight_b = expf(b - top);
      value = top == -INFINITY ? sum[at]
                               : (weight_a * sum[at] + weight_b * value) / (weight_a + weight_b);
    }
    sum[at] = value;
    if (o != nullptr) o[row * o_stride + j] = from_float<bfloat16>(value);
  });
  if (first) {
    spread_statistics(queue, statistics, n, heads, lse, lse_stride);
    return;
  }
  for_each(queue, n * heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / heads, head = at % heads;
    float& value = lse[row * lse_stride + head];
    const float a = value, b = statistics[head * n + row];
    const float top = fmaxf(a, b);
    if (top != -INFINITY) value = top + logf(expf(a - top) + expf(b - top));
  });
}

void output_from_delta(const Queue& queue, const bfloat16* d_o, int64_t o_stride,
                       const float* delta, int64_t delta_stride, int64_t n, int64_t heads,
                       int64_t dim, bfloat16* output) {
  for_each(queue, n * heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / heads, head = at % heads;
    const bfloat16* from = d_o + row * o_stride + head * dim;
    bfloat16* to = output + (row * heads + head) * dim;
    const float wanted = delta[row * delta_stride + head];
    float squares = 0, largest = 0;
    for (int64_t j = 0; j < dim; ++j) {
      const float x = to_float(from[j]);
      squares += x * x;
      largest = fmaxf(largest, fabsf(x));
    }
    const float factor = squares > 0 ? wanted / squares : 0;
    // One element absorbs the rounding error of the product. It is a small one, so that its own
    // rounding error is negligible in the product.
    int64_t small = -1;
    float smallest = largest, product = 0;
    for (int64_t j = 0; j < dim; ++j) {
      const float x = to_float(from[j]);
      to[j] = from_float<bfloat16>(x * factor);
      product += x * to_float(to[j]);
      if (fabsf(x) > smallest || fabsf(x) * 64 < largest) continue;
      small = j;
      smallest = fabsf(x);
    }
    if (squares > 0) {
      const float x = to_float(from[small]);
      to[small] = from_float<bfloat16>(to_float(to[small]) + (wanted - product) / x);
    }
  });
}

void accumulate(const Queue& queue, const bfloat16* part, int64_t n, bool first, float* sum) {
  for_each(queue, n,
           [=] LONGSPAN_BODY(int64_t i) { sum[i] = (first ? 0 : sum[i]) + to_float(part[i]); });
}

}  // namespace longspan::cuda
