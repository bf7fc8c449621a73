// Column sums over rows, for the gradients of biases and of norms' weights. The first of two passes
// computes partial sums of groups of rows. No atomics, so the bits repeat, and neighbouring threads
// read neighbouring columns. Included by .cu files only.
#pragma once

#include "base/units.h"
#include "engine/cuda/launch.h"

namespace longspan::cuda {

/// sums[j] += the sum over i in [0, n) of value(i, j), for j in [0, width). `partial` is
/// `partial_bytes` of scratch. `sums` are float or double. REQUIRES: the scratch holds width floats.
template <class Value, class Sum>
void add_column_sums(const Queue& queue, int64_t n, int64_t width, std::byte* partial,
                     int64_t partial_bytes, Value value, Sum* sums) {
  constexpr int64_t kRows = 64;  // per thread; more if scratch is short
  const int64_t room = partial_bytes / (width * static_cast<int64_t>(sizeof(float)));
  const int64_t rows = std::max(kRows, ceil_div(n, room));
  const int64_t groups = ceil_div(n, rows);
  float* parts = reinterpret_cast<float*>(partial);
  for_each(queue, groups * width, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t first = at / width * rows, j = at % width;
    const int64_t end = first + rows < n ? first + rows : n;
    float sum = 0;
    for (int64_t i = first; i < end; ++i) sum += value(i, j);
    parts[at] = sum;
  });
  for_each(queue, width, [=] LONGSPAN_BODY(int64_t j) {
    Sum sum = 0;
    for (int64_t group = 0; group < groups; ++group) sum += parts[group * width + j];
    sums[j] += sum;
  });
}

}  // namespace longspan::cuda
