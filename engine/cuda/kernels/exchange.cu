#include "engine/cuda/kernels/exchange.h"

#include "engine/cuda/kernels/add.cuh"
#include "engine/cuda/launch.h"

namespace longspan::cuda {
namespace {

// The unit that a thread copies.
struct alignas(16) SixteenBytes {
  uint64_t words[2];
};

template <class Unit>
void copy_units(const Queue& queue, const std::byte* from, int64_t from_stride, int64_t rows,
                int64_t width, std::byte* to, int64_t to_stride) {
  const int64_t bytes = sizeof(Unit), units = width / bytes;
  for_each(queue, rows * units, [=] LONGSPAN_BODY(int64_t i) {
    const int64_t row = i / units, column = i % units * bytes;
    *reinterpret_cast<Unit*>(to + row * to_stride + column) =
        *reinterpret_cast<const Unit*>(from + row * from_stride + column);
  });
}

LONGSPAN_DEVICE inline double widened(double x) { return x; }
LONGSPAN_DEVICE inline float widened(float x) { return x; }
LONGSPAN_DEVICE inline float widened(bfloat16 x) { return to_float(x); }

LONGSPAN_DEVICE inline void put(double value, double* to) { *to = value; }
template <class T>
LONGSPAN_DEVICE void put(float value, T* to) {
  *to = from_float<T>(value);
}

}  // namespace

void copy_blocks(const Queue& queue, const std::byte* from, int64_t from_stride, int64_t rows,
                 int64_t width, std::byte* to, int64_t to_stride) {
  if (rows == 1) from_stride = to_stride = 0;
  const auto all = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to) |
                   static_cast<uintptr_t>(from_stride | to_stride | width);
  if (all % 16 == 0) {
    copy_units<SixteenBytes>(queue, from, from_stride, rows, width, to, to_stride);
  } else if (all % 4 == 0) {
    copy_units<uint32_t>(queue, from, from_stride, rows, width, to, to_stride);
  } else {
    copy_units<uint8_t>(queue, from, from_stride, rows, width, to, to_stride);
  }
}

void add_blocks(const Queue& queue, const float* from, int64_t from_stride, int64_t rows,
                int64_t width, float* to, int64_t to_stride) {
  add_matrices(queue, to, to_stride, from, from_stride, rows, width, to, to_stride);
}

template <class T>
void sum_parts(const Queue& queue, const Parts<T>& parts, int64_t n, T* sum) {
  for_each(queue, n, [=] LONGSPAN_BODY(int64_t i) {
    auto total = widened(parts.at[0][i]);
    for (int part = 1; part < parts.count; ++part) total += widened(parts.at[part][i]);
    put(total, sum + i);
  });
}

template void sum_parts(const Queue&, const Parts<float>&, int64_t, float*);
template void sum_parts(const Queue&, const Parts<bfloat16>&, int64_t, bfloat16*);
template void sum_parts(const Queue&, const Parts<double>&, int64_t, double*);

}  // namespace longspan::cuda
