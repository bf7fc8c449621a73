#include "engine/cuda/kernels/rows.h"

#include <cstring>

#include "engine/cuda/kernels/add.cuh"
#include "engine/cuda/kernels/columns.cuh"
#include "engine/cuda/launch.h"

namespace longspan::cuda {

template <class T>
void add_bias(const Queue& queue, const T* bias, int64_t n, int64_t width, T* x, int64_t stride) {
  add_matrices(queue, x, stride, bias, 0, n, width, x, stride);
}

template <class T>
void add_rows(const Queue& queue, const T* x, const T* sum, int64_t n, T* y) {
  add_matrices(queue, x, 0, sum, 0, 1, n, y, 0);
}

template <class T>
void scale_rows(const Queue& queue, float factor, int64_t n, T* x) {
  const bool packs = in_packs({n}, {x});
  for_each_pack(queue, packs, 1, n, [=] LONGSPAN_BODY(auto lanes, int64_t, int64_t j) {
    float value[lanes.value];
    load(x + j, value);
    for (int k = 0; k < lanes.value; ++k) value[k] *= factor;
    store(value, x + j);
  });
}

void add(const Queue& queue, const float* part, int64_t n, float* sum) {
  add_rows<float>(queue, sum, part, n, sum);
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

// Rows of a share of the tokens from, or to, their places among all: those of RowChoice::at().
template <bool restores, class T>
void move_rows(const Queue& queue, const T* from, const RowChoice& choice, int64_t width, T* to) {
  const int64_t tokens = choice.all, outer = choice.outer, inner = choice.inner;
  const bool packs = in_packs({width}, {from, to});
  for_each_pack(queue, packs, inner, width, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    const int64_t place = (row * tokens / inner * outer + tokens - 1) / tokens;
    float value[lanes.value];
    load(from + (restores ? row : place) * width + j, value);
    store(value, to + (restores ? place : row) * width + j);
  });
}

template <class T>
void select_rows(const Queue& queue, const T* all, const RowChoice& choice, int64_t width,
                 T* rows) {
  move_rows<false>(queue, all, choice, width, rows);
}

template <class T>
void restore_rows(const Queue& queue, const T* rows, const RowChoice& choice, int64_t width,
                  T* all) {
  move_rows<true>(queue, rows, choice, width, all);
}

template <class From, class To>
void copy_rows(const Queue& queue, const From* from, int64_t from_stride, int64_t n, int64_t width,
               To* to, int64_t to_stride) {
  if (from_stride == width && to_stride == width) {
    width *= n;
    n = 1;
  }
  if (n == 1) from_stride = to_stride = 0;
  const bool packs = in_packs({from_stride, to_stride}, {from, to});
  for_each_pack(queue, packs, n, width, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    float value[lanes.value];
    load(from + row * from_stride + j, value);
    store(value, to + row * to_stride + j);
  });
}

template <class T>
void head_products(const Queue& queue, const T* a, const T* b, int64_t n, int64_t heads,
                   int64_t dim, float* delta) {
  const bool packs = in_packs({dim}, {a, b});
  for_each_warp(queue, n * heads, [=] LONGSPAN_BODY(const Warp& warp, int64_t i) {
    float sum = 0;
    each_pack(warp, packs, dim, [&](auto lanes, int64_t j) {
      float x[lanes.value], y[lanes.value];
      load(a + i * dim + j, x);
      load(b + i * dim + j, y);
      for (int k = 0; k < lanes.value; ++k) sum += x[k] * y[k];
    });
    sum = warp.sum(sum);
    if (warp.rank() == 0) delta[i] = sum;
  });
}

template void add_bias(const Queue&, const float*, int64_t, int64_t, float*, int64_t);
template void add_bias(const Queue&, const bfloat16*, int64_t, int64_t, bfloat16*, int64_t);
template void add_rows(const Queue&, const float*, const float*, int64_t, float*);
template void add_rows(const Queue&, const bfloat16*, const bfloat16*, int64_t, bfloat16*);
template void scale_rows(const Queue&, float, int64_t, float*);
template void scale_rows(const Queue&, float, int64_t, bfloat16*);
template void add_column_sums(const Queue&, const float*, int64_t, int64_t, int64_t, float*);
template void add_column_sums(const Queue&, const bfloat16*, int64_t, int64_t, int64_t, float*);
template void copy_rows(const Queue&, const float*, int64_t, int64_t, int64_t, float*, int64_t);
template void copy_rows(const Queue&, const bfloat16*, int64_t, int64_t, int64_t, bfloat16*,
                        int64_t);
template void copy_rows(const Queue&, const float*, int64_t, int64_t, int64_t, bfloat16*, int64_t);
template void copy_rows(const Queue&, const bfloat16*, int64_t, int64_t, int64_t, float*, int64_t);
template void select_rows(const Queue&, const float*, const RowChoice&, int64_t, float*);
template void select_rows(const Queue&, const bfloat16*, const RowChoice&, int64_t, bfloat16*);
template void restore_rows(const Queue&, const float*, const RowChoice&, int64_t, float*);
template void restore_rows(const Queue&, const bfloat16*, const RowChoice&, int64_t, bfloat16*);
template void head_products(const Queue&, const float*, const float*, int64_t, int64_t, int64_t,
                            float*);
template void head_products(const Queue&, const bfloat16*, const bfloat16*, int64_t, int64_t,
                            int64_t, float*);

}  // namespace longspan::cuda
