// The local part of exchanges between ranks: packing rows, and summing the parts of several ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// Copies rows of `width` bytes, which begin a stride apart. Fast if addresses, width and strides
/// are multiples of 16.
void copy_blocks(const Queue&, const std::byte* from, int64_t from_stride, int64_t rows,
                 int64_t width, std::byte* to, int64_t to_stride);

/// to += from: rows of `width` floats, which begin a stride (in floats) apart.
void add_blocks(const Queue&, const float* from, int64_t from_stride, int64_t rows, int64_t width,
                float* to, int64_t to_stride);

/// The most parts that sum_parts() adds.
inline constexpr int kMostParts = 64;

/// The parts of a sum, in the order of addition.
template <class T>
struct Parts {
  std::array<const T*, kMostParts> at{};
  int count = 0;
};

/// sum[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., n elements. T is float or bfloat16
/// (added in float and rounded once) or double. `sum` may be one of the parts.
template <class T>
void sum_parts(const Queue&, const Parts<T>& parts, int64_t n, T* sum);

}  // namespace longspan::cuda
