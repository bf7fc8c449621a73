// Conversions between our layouts and those of a library's attention; see
// planner/program/attention_workspace.h.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// lse[n, heads], with rows `stride` elements apart, = statistics[heads, n]; and the reverse.
void spread_statistics(const Queue&, const float* statistics, int64_t n, int64_t heads, float* lse,
                       int64_t stride);
void gather_statistics(const Queue&, const float* lse, int64_t stride, int64_t n, int64_t heads,
                       float* statistics);

/// Merges partial[n, heads * dim] with its statistics[heads, n] into sum[n, heads * dim] and lse,
/// with rows `lse_stride` apart, in the max-shifted form: never exp of a positive difference. With
/// `first`, sum and lse are written. o, with rows `o_stride` apart, is sum rounded; may be null.
void merge_partial(const Queue&, const bfloat16* partial, const float* statistics, int64_t n,
                   int64_t heads, int64_t dim, bool first, float* sum, bfloat16* o,
                   int64_t o_stride, float* lse, int64_t lse_stride);

/// Merges part[n, heads * dim] with its part_lse[n, heads] in the same way. Rows of part_lse are as
/// far apart as those of lse. With sum[n, heads * dim], o is only written; else it is updated.
template <class T>
void merge_outputs(const Queue&, const float* part, const float* part_lse, int64_t n, int64_t heads,
                   int64_t dim, float* sum, T* o, int64_t o_stride, float* lse, int64_t lse_stride);

/// Merges sinks[heads], keys of these scores and of value 0, into an output and its lse: those of
/// sum[n, heads * dim] and of o, if they are given.
template <class T>
void add_sinks(const Queue&, const T* sinks, int64_t n, int64_t heads, int64_t dim, float* sum,
               T* o, int64_t o_stride, float* lse, int64_t lse_stride);
/// gradients[heads] -= the sum over rows of exp(sink - lse) * delta.
template <class T>
void add_sink_gradients(const Queue&, const T* sinks, const float* lse, int64_t lse_stride,
                        const float* delta, int64_t delta_stride, int64_t n, int64_t heads,
                        float* gradients);

/// Computes an output[n, heads * dim] with rowsum(d_o * output) = delta per head, to 2^-12 of delta
/// or better: d_o * delta / |d_o|^2 with one corrected element. By Cauchy-Schwarz it is hardly
/// longer than the true output.
void output_from_delta(const Queue&, const bfloat16* d_o, int64_t o_stride, const float* delta,
                       int64_t delta_stride, int64_t n, int64_t heads, int64_t dim,
                       bfloat16* output);

/// sum[n] = part, plus sum[n] unless `first`.
struct Accumulation {
  const bfloat16* part;
  float* sum;
  int64_t n;
  bool first;
};

/// The accumulations of the three gradients of an attention.
struct Accumulations {
  Accumulation of[3];
};
void accumulate(const Queue&, const Accumulations& gradients);

}  // namespace longspan::cuda
