// Matrix products of tiles that fit in the cache, used inside attention, where operands are packed
// once and used many times. Single-threaded, no allocation. Internal to engine/cpu.
#pragma once

#include <cassert>
#include <cstdint>

#include "engine/cpu/simd.h"

namespace longspan::cpu {

/// Rows and columns of the register tile. The columns of B and C must be a multiple of kTileCols.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 12;
#else
inline constexpr int kTileRows = 6;
#endif
inline constexpr int kTileCols = 2 * kLanes;

/// C[kRows, kTileCols] (+)= A B, with A(i, p) at a[i * row_stride + p * col_stride].
template <int kRows, bool kAdd>
inline void tile_kernel(int64_t k, const float* a, int64_t row_stride, int64_t col_stride,
                        const float* b, int64_t ldb, float* c, int64_t ldc) {
  Vec left[kRows];
  Vec right[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    left[i] = right[i] = Vec{};
    __builtin_prefetch(c + i * ldc, 1);  // C is not in the cache yet, and is needed only at the end
  }
#pragma GCC unroll 4
  for (int64_t p = 0; p < k; ++p) {
    const Vec b0 = load(b);
    const Vec b1 = load(b + kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec x = broadcast(a[i * row_stride]);
      left[i] += x * b0;
      right[i] += x * b1;
    }
    a += col_stride;
    b += ldb;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    float* row = c + i * ldc;
    store(row, kAdd ? load(row) + left[i] : left[i]);
    store(row + kLanes, kAdd ? load(row + kLanes) + right[i] : right[i]);
  }
}

/// The remaining rows, fewer than 2 * kRows, in tiles of decreasing height.
template <int kRows, bool kAdd>
inline void tile_rest(int64_t m, int64_t k, const float* a, int64_t row_stride, int64_t col_stride,
                      const float* b, int64_t ldb, float* c, int64_t ldc) {
  if constexpr (kRows > 0) {
    if (m >= kRows) {
      tile_kernel<kRows, kAdd>(k, a, row_stride, col_stride, b, ldb, c, ldc);
      m -= kRows;
      a += kRows * row_stride;
      c += kRows * ldc;
    }
    tile_rest<kRows / 2, kAdd>(m, k, a, row_stride, col_stride, b, ldb, c, ldc);
  }
}

/// C[m, n] (+)= A[m, k] B[k, n]. B and C are row-major, A has any strides (a transposed A has
/// row_stride 1). REQUIRES: n is a multiple of kTileCols.
template <bool kAdd>
inline void tile_gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_stride,
                      int64_t col_stride, const float* b, int64_t ldb, float* c, int64_t ldc) {
  assert(n % kTileCols == 0);
  for (int64_t j = 0; j < n; j += kTileCols) {
    int64_t i = 0;
    for (; i + kTileRows <= m; i += kTileRows) {
      tile_kernel<kTileRows, kAdd>(k, a + i * row_stride, row_stride, col_stride, b + j, ldb,
                                   c + i * ldc + j, ldc);
    }
    tile_rest<kTileRows == 12 ? 8 : 4, kAdd>(m - i, k, a + i * row_stride, row_stride, col_stride,
                                             b + j, ldb, c + i * ldc + j, ldc);
  }
}

/// The row length, in floats, of a packed tile of at least `cols` columns: whole register tiles and
/// an odd number of cache lines, so that a column does not map to one set of the cache.
constexpr int64_t tile_stride(int64_t cols) {
  constexpr int64_t line = 16;
  constexpr int64_t step = kTileCols > line ? kTileCols : line;
  const int64_t lines = (cols + step - 1) / step * (step / line);
  return (lines | 1) * line;
}

/// to[rows, cols] = from, padded with zeros up to column `width` <= ldt.
inline void pack_rows(const float* from, int64_t ldf, int64_t rows, int64_t cols, float* to,
                      int64_t ldt, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* source = from + i * ldf;
    float* target = to + i * ldt;
    for_lanes(cols,
              [&](int64_t j, int64_t count) { store(target + j, load(source + j, count), count); });
    for (int64_t j = cols; j < width; ++j) target[j] = 0;
  }
}

/// to[cols, rows] = from[rows, cols] transposed, padded with zeros up to column `width` <= ldt.
inline void pack_transposed(const float* from, int64_t ldf, int64_t rows, int64_t cols, float* to,
                            int64_t ldt, int64_t width) {
  const int64_t whole_rows = rows / kLanes * kLanes;
  const int64_t whole_cols = cols / kLanes * kLanes;
  for (int64_t i = 0; i < whole_rows; i += kLanes) {
    for (int64_t j = 0; j < whole_cols; j += kLanes) {
      Vec v[kLanes];
      for (int r = 0; r < kLanes; ++r) v[r] = load(from + (i + r) * ldf + j);
      transpose_block(v);
      for (int r = 0; r < kLanes; ++r) store(to + (j + r) * ldt + i, v[r]);
    }
    for (int64_t j = whole_cols; j < cols; ++j) {
      for (int64_t r = i; r < i + kLanes; ++r) to[j * ldt + r] = from[r * ldf + j];
    }
  }
  for (int64_t j = 0; j < cols; ++j) {
    for (int64_t r = whole_rows; r < rows; ++r) to[j * ldt + r] = from[r * ldf + j];
    for (int64_t r = rows; r < width; ++r) to[j * ldt + r] = 0;
  }
}

}  // namespace longspan::cpu
