// Elementwise operations on rows: biases, residuals, copies, and rounding of accumulators. T is
// float or bfloat16.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"
#include "planner/program/token_share.h"

namespace longspan::cuda {

/// x[n, width], with rows `stride` elements apart, += bias[width].
template <class T>
void add_bias(const Queue&, const T* bias, int64_t n, int64_t width, T* x, int64_t stride);

/// y = x + sum, n elements. y may be x.
template <class T>
void add_rows(const Queue&, const T* x, const T* sum, int64_t n, T* y);

/// x *= factor, n elements.
template <class T>
void scale_rows(const Queue&, float factor, int64_t n, T* x);

/// sum += part, n elements.
void add(const Queue&, const float* part, int64_t n, float* sum);

/// sums[width] += the column sums of x[n, width], with rows `stride` elements apart.
template <class T>
void add_column_sums(const Queue&, const T* x, int64_t n, int64_t width, int64_t stride,
                     float* sums);

/// Rounds x[n, width] in place: row i becomes the first `width` of the 2 * width bfloat16 in its
/// memory.
void narrow_in_place(const Queue&, float* x, int64_t n, int64_t width);

/// to[n, width] = from, with rows `to_stride` and `from_stride` elements apart, widened or rounded.
template <class From, class To>
void copy_rows(const Queue&, const From* from, int64_t from_stride, int64_t n, int64_t width,
               To* to, int64_t to_stride);

/// rows[i, width] = all[choice.at(i), width], for choice.inner rows.
template <class T>
void select_rows(const Queue&, const T* all, const RowChoice& choice, int64_t width, T* rows);
/// all[choice.at(i), width] = rows[i, width].
template <class T>
void restore_rows(const Queue&, const T* rows, const RowChoice& choice, int64_t width, T* all);

/// delta[n, heads] = the sum over each head of a[n, heads * dim] * b.
template <class T>
void head_products(const Queue&, const T* a, const T* b, int64_t n, int64_t heads, int64_t dim,
                   float* delta);

}  // namespace longspan::cuda
