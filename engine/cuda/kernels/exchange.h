// What a rank does with its own memory around messages to others: packing rows, and sums of what
// several ranks have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// Rows of `width` bytes, which begin a stride apart, from one place to another. Fast where
/// addresses, width and strides are multiples of 16.
void copy_blocks(const Queue&, const std::byte* from, int64_t from_stride, int64_t rows,
                 int64_t width, std::byte* to, int64_t to_stride);

/// to += from: rows of `width` floats, which begin a stride (in floats) apart.
void add_blocks(const Queue&, const float* from, int64_t from_stride, int64_t rows, int64_t width,
                float* to, int64_t to_stride);

/// The ranks whose parts sum_parts() can add up.
inline constexpr int kMostParts = 64;

/// Where the parts of a sum lie, in the order in which they are added.
template <class T>
struct Parts {
  std::array<const T*, kMostParts> at{};
  int count = 0;
};

/// sum[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., n elements. T is float or bfloat16,
/// which is added in float and rounded once, or double. `sum` may be one of the parts.
template <class T>
void sum_parts(const Queue&, const Parts<T>& parts, int64_t n, T* sum);

}  // namespace longspan::cuda
