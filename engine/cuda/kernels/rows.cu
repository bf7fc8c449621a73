#include "engine/cuda/kernels/rows.h"

#include <cstring>

#include "engine/cuda/kernels/columns.cuh"
#include "engine/cuda/launch.h"

namespace longspan::cuda {

template <class T>
void add_bias(const Queue& queue, const T* bias, int64_t n, int64_t width, T* x, int64_t stride) {
  for_each(queue, n * width, [=] LONGSPAN_BODY(int64_t i) {
    T& value = x[i / width * stride + i % width];
    value = from_float<T>(to_float(value) + to_float(bias[i % width]));
  });
}

template <class T>
void add_rows(const Queue& queue, const T* x, const T* sum, int64_t n, T* y) {
  for_each(queue, n, [=] LONGSPAN_BODY(int64_t i) {
    y[i] = from_float<T>(to_float(x[i]) + to_float(sum[i]));
  });
}

void add(const Queue& queue, const float* part, int64_t n, float* sum) {
  for_each(queue, n, [=] LONGSPAN_BODY(int64_t i) { sum[i] += part[i]; });
}

template <class T>
void add_column_sums(const Queue& queue, const T* x, int64_t n, int64_t width, int64_t stride,
                     float* sums) {
  add_column_sums(
      queue, n, width, queue.scratch, kScratchBytes,
      [=] LONGSPAN_BODY(int64_t i, int64_t j) { return to_float(x[i * stride + j]); }, sums);
}

void narrow_in_place(const Queue& queue, float* x, int64_t n, int64_t width) {
  for_each_row(queue, n, [=] LONGSPAN_BODY(const Team& team, int64_t row) {
    const float* from = x + row * width;
    std::byte* to = reinterpret_cast<std::byte*>(x + row * width);
    // Within a round all members read before any of them writes. The output of a round ends before
    // the input of the next one begins, so no barrier is needed between rounds.
    for (int64_t first = 0; first < width; first += team.size()) {
      const int64_t j = first + team.rank();
      const bfloat16 value = from_float<bfloat16>(j < width ? from[j] : 0);
      team.sync();
      if (j < width) memcpy(to + j * sizeof value, &value, sizeof value);
    }
  });
}

template <class From, class To>
void copy_rows(const Queue& queue, const From* from, int64_t from_stride, int64_t n, int64_t width,
               To* to, int64_t to_stride) {
  for_each(queue, n * width, [=] LONGSPAN_BODY(int64_t i) {
    const int64_t row = i / width, j = i % width;
    to[row * to_stride + j] = from_float<To>(to_float(from[row * from_stride + j]));
  });
}

template <class T>
void head_products(const Queue& queue, const T* a, const T* b, int64_t n, int64_t heads,
                   int64_t dim, float* delta) {
  for_each(queue, n * heads, [=] LONGSPAN_BODY(int64_t i) {
    float sum = 0;
    for (int64_t j = i * dim; j < (i + 1) * dim; ++j) sum += to_float(a[j]) * to_float(b[j]);
    delta[i] = sum;
  });
}

template void add_bias(const Queue&, const float*, int64_t, int64_t, float*, int64_t);
template void add_bias(const Queue&, const bfloat16*, int64_t, int64_t, bfloat16*, int64_t);
template void add_rows(const Queue&, const float*, const float*, int64_t, float*);
template void add_rows(const Queue&, const bfloat16*, const bfloat16*, int64_t, bfloat16*);
template void add_column_sums(const Queue&, const float*, int64_t, int64_t, int64_t, float*);
template void add_column_sums(const Queue&, const bfloat16*, int64_t, int64_t, int64_t, float*);
template void copy_rows(const Queue&, const float*, int64_t, int64_t, int64_t, float*, int64_t);
template void copy_rows(const Queue&, const bfloat16*, int64_t, int64_t, int64_t, bfloat16*,
                        int64_t);
template void copy_rows(const Queue&, const float*, int64_t, int64_t, int64_t, bfloat16*, int64_t);
template void copy_rows(const Queue&, const bfloat16*, int64_t, int64_t, int64_t, float*, int64_t);
template void head_products(const Queue&, const float*, const float*, int64_t, int64_t, int64_t,
                            float*);
template void head_products(const Queue&, const bfloat16*, const bfloat16*, int64_t, int64_t,
                            int64_t, float*);

}  // namespace longspan::cuda
