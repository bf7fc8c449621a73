// Sums of two matrices by rows, in packs. Included by .cu files only.
#pragma once

#include "engine/cuda/launch.h"

namespace longspan::cuda {

/// sum[n, width] = a + b, with rows `a_stride`, `b_stride` and `sum_stride` elements apart; with 0
/// all rows are one. sum may be a or b.
template <class T>
void add_matrices(const Queue& queue, const T* a, int64_t a_stride, const T* b, int64_t b_stride,
                  int64_t n, int64_t width, T* sum, int64_t sum_stride) {
  const bool packs = in_packs({a_stride, b_stride, sum_stride}, {a, b, sum});
  for_each_pack(queue, packs, n, width, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    float x[lanes.value], y[lanes.value];
    load(a + row * a_stride + j, x);
    load(b + row * b_stride + j, y);
    for (int k = 0; k < lanes.value; ++k) x[k] += y[k];
    store(x, sum + row * sum_stride + j);
  });
}

}  // namespace longspan::cuda
