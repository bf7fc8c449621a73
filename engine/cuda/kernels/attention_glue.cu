#include "engine/cuda/kernels/attention_glue.h"

#include <algorithm>
#include <cmath>

#include "engine/cuda/kernels/columns.cuh"
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
  // A pack lies within a head.
  const bool packs = in_packs({dim, o_stride}, {partial, sum, o});
  for_each_pack(queue, packs, n, width, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    float value[lanes.value];
    load(partial + row * width + j, value);
    if (!first) {
      const int64_t head = static_cast<uint32_t>(j) / static_cast<uint32_t>(dim);
      const float a = lse[row * lse_stride + head], b = statistics[head * n + row];
      const float top = fmaxf(a, b);
      const float of_a = expf(a - top), of_b = expf(b - top);
      const float weight_a = quotient(of_a, of_a + of_b), weight_b = quotient(of_b, of_a + of_b);
      float before[lanes.value];
      load(sum + row * width + j, before);
      for (int k = 0; k < lanes.value; ++k) {
        value[k] = top == -INFINITY ? before[k] : weight_a * before[k] + weight_b * value[k];
      }
    }
    store(value, sum + row * width + j);
    if (o != nullptr) store(value, o + row * o_stride + j);
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

template <class T>
void merge_outputs(const Queue& queue, const float* part, const float* part_lse, int64_t n,
                   int64_t heads, int64_t dim, float* sum, T* o, int64_t o_stride, float* lse,
                   int64_t lse_stride) {
  const int64_t width = heads * dim;
  const bool packs = in_packs({dim, o_stride}, {part, sum, o});
  for_each_pack(queue, packs, n, width, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t j) {
    const int64_t head = static_cast<uint32_t>(j) / static_cast<uint32_t>(dim);
    const float a = lse[row * lse_stride + head], b = part_lse[row * lse_stride + head];
    const float top = fmaxf(a, b);
    const float of_a = expf(a - top), of_b = expf(b - top);
    const float weight_a = quotient(of_a, of_a + of_b), weight_b = quotient(of_b, of_a + of_b);
    float value[lanes.value], other[lanes.value];
    if (sum != nullptr) {
      load(sum + row * width + j, value);
    } else {
      load(o + row * o_stride + j, value);
    }
    load(part + row * width + j, other);
    for (int k = 0; k < lanes.value; ++k) value[k] = weight_a * value[k] + weight_b * other[k];
    if (sum != nullptr) store(value, sum + row * width + j);
    store(value, o + row * o_stride + j);
  });
  for_each(queue, n * heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / heads, head = at % heads;
    float& value = lse[row * lse_stride + head];
    const float a = value, b = part_lse[row * lse_stride + head];
    const float top = fmaxf(a, b);
    value = top + logf(expf(a - top) + expf(b - top));
  });
}

void output_from_delta(const Queue& queue, const bfloat16* d_o, int64_t o_stride,
                       const float* delta, int64_t delta_stride, int64_t n, int64_t heads,
                       int64_t dim, bfloat16* output) {
  const bool packs = in_packs({dim, o_stride}, {d_o, output});
  for_each_warp(queue, n * heads, [=] LONGSPAN_BODY(const Warp& warp, int64_t at) {
    const int64_t row = at / heads, head = at % heads;
    const bfloat16* from = d_o + row * o_stride + head * dim;
    bfloat16* to = output + (row * heads + head) * dim;
    const float wanted = delta[row * delta_stride + head];
    float squares = 0, largest = 0;
    each_pack(warp, packs, dim, [&](auto lanes, int64_t j) {
      float x[lanes.value];
      load(from + j, x);
      for (int k = 0; k < lanes.value; ++k) {
        squares += x[k] * x[k];
        largest = fmaxf(largest, fabsf(x[k]));
      }
    });
    squares = warp.sum(squares);
    largest = warp.max(largest);
    const float factor = squares > 0 ? wanted / squares : 0;
    // One element absorbs the rounding error of the product. It is a small one, so that its own
    // rounding error is negligible in the product.
    float smallest = largest, product = 0;
    int64_t small = INT64_MAX;
    each_pack(warp, packs, dim, [&](auto lanes, int64_t j) {
      float x[lanes.value], y[lanes.value];
      load(from + j, x);
      for (int k = 0; k < lanes.value; ++k) {
        y[k] = to_float(from_float<bfloat16>(x[k] * factor));
        product += x[k] * y[k];
        if (fabsf(x[k]) > smallest || fabsf(x[k]) * 64 < largest) continue;
        if (fabsf(x[k]) < smallest || small == INT64_MAX) small = j + k;
        smallest = fabsf(x[k]);
      }
      store(y, to + j);
    });
    product = warp.sum(product);
    // The member that has the smallest of all; of several, the one with the first element.
    const float least = -warp.max(small == INT64_MAX ? -INFINITY : -smallest);
    const bool has_least = small != INT64_MAX && smallest == least;
    // Columns are exact in a float.
    const float first = -warp.max(has_least ? -static_cast<float>(small) : -INFINITY);
    if (squares > 0 && has_least && static_cast<float>(small) == first) {
      const float x = to_float(from[small]);
      to[small] = from_float<bfloat16>(to_float(to[small]) + (wanted - product) / x);
    }
  });
}

template <class T>
void add_sinks(const Queue& queue, const T* sinks, int64_t n, int64_t heads, int64_t dim,
               float* sum, T* o, int64_t o_stride, float* lse, int64_t lse_stride) {
  const int64_t width = heads * dim;
  // The part of the softmax that the sink leaves.
  const auto left = [=] LONGSPAN_BODY(int64_t row, int64_t head) {
    return 1 / (1 + expf(to_float(sinks[head]) - lse[row * lse_stride + head]));
  };
  for_each(queue, n * width, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / width, j = at % width;
    const float part = left(row, j / dim);
    if (sum != nullptr) sum[at] *= part;
    if (o == nullptr) return;
    T& value = o[row * o_stride + j];
    value = from_float<T>(sum != nullptr ? sum[at] : to_float(value) * part);
  });
  for_each(queue, n * heads, [=] LONGSPAN_BODY(int64_t at) {
    const int64_t row = at / heads, head = at % heads;
    float& own = lse[row * lse_stride + head];
    const float sink = to_float(sinks[head]), top = fmaxf(own, sink);
    own = top + logf(expf(own - top) + expf(sink - top));
  });
}

template <class T>
void add_sink_gradients(const Queue& queue, const T* sinks, const float* lse, int64_t lse_stride,
                        const float* delta, int64_t delta_stride, int64_t n, int64_t heads,
                        float* gradients) {
  add_column_sums(
      queue, n, heads, queue.scratch, kScratchBytes,
      [=] LONGSPAN_BODY(int64_t row, int64_t head) {
        return -expf(to_float(sinks[head]) - lse[row * lse_stride + head]) *
               delta[row * delta_stride + head];
      },
      gradients);
}

void accumulate(const Queue& queue, const Accumulations& gradients) {
  bool packs = true;
  int64_t longest = 0;
  for (const Accumulation& of : gradients.of) {
    packs &= in_packs({of.n}, {of.part, of.sum});
    longest = std::max(longest, of.n);
  }
  for_each_pack(queue, packs, 3, longest, [=] LONGSPAN_BODY(auto lanes, int64_t row, int64_t i) {
    // An index that is not known to the compiler would move all three to local memory.
    const Accumulation of = row == 0   ? gradients.of[0]
                            : row == 1 ? gradients.of[1]
                                       : gradients.of[2];
    if (i >= of.n) return;
    float value[lanes.value], before[lanes.value] = {};
    load(of.part + i, value);
    if (!of.first) load(of.sum + i, before);
    for (int k = 0; k < lanes.value; ++k) value[k] += before[k];
    store(value, of.sum + i);
  });
}

template void add_sinks(const Queue&, const float*, int64_t, int64_t, int64_t, float*, float*,
                        int64_t, float*, int64_t);
template void add_sinks(const Queue&, const bfloat16*, int64_t, int64_t, int64_t, float*, bfloat16*,
                        int64_t, float*, int64_t);
template void add_sink_gradients(const Queue&, const float*, const float*, int64_t, const float*,
                                 int64_t, int64_t, int64_t, float*);
template void add_sink_gradients(const Queue&, const bfloat16*, const float*, int64_t, const float*,
                                 int64_t, int64_t, int64_t, float*);

template void merge_outputs<float>(const Queue&, const float*, const float*, int64_t, int64_t,
                                   int64_t, float*, float*, int64_t, float*, int64_t);
template void merge_outputs<bfloat16>(const Queue&, const float*, const float*, int64_t, int64_t,
                                      int64_t, float*, bfloat16*, int64_t, float*, int64_t);

}  // namespace longspan::cuda
