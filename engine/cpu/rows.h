// Row-wise helpers of the blocks: splitting rows into pieces, sums over a row, and sums over rows
// for the gradients of biases. Internal to engine/cpu.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/units.h"
#include "engine/cpu/simd.h"
#include "engine/cpu/thread_pool.h"

namespace longspan::cpu {

/// Elements of an elementwise piece: enough to outweigh the cost of scheduling it, few enough for
/// the cache. Fixed, so that pieces do not depend on the pool.
inline constexpr int64_t kPieceElements = 32768;
/// Terms summed in one register before they are added to a gradient. Keeps long sums accurate.
inline constexpr int64_t kSumRows = 128;
/// Columns that a thread sums at a time.
inline constexpr int64_t kSumCols = 4 * kLanes;

/// Runs body(piece) for every piece. std::ref keeps std::function from copying the body to the
/// heap.
template <class Body>
void for_pieces(ThreadPool& pool, int64_t pieces, Body&& body) {
  auto run = [&body](int64_t piece, int) { body(piece); };
  pool.run(pieces, std::ref(run));
}

inline int64_t rows_per_piece(int64_t width) {
  return std::max<int64_t>(1, kPieceElements / std::max<int64_t>(1, width));
}

/// Runs body(begin, end) over pieces of n rows with `width` elements of work each.
template <class Body>
void for_rows(ThreadPool& pool, int64_t n, int64_t width, Body&& body) {
  const int64_t rows = rows_per_piece(width);
  for_pieces(pool, ceil_div(n, rows),
             [&](int64_t piece) { body(piece * rows, std::min(n, (piece + 1) * rows)); });
}

/// The sum of term(offset, count) over [0, n), in four independent registers. In a tail, the lanes
/// beyond count must be zero.
template <class Term>
inline float sum_over(int64_t n, Term&& term) {
  Vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int r = 0; r < 4; ++r) sums[r] += term(i + r * kLanes, kLanes);
  }
  for (; i < n; i += kLanes) sums[0] += term(i, std::min<int64_t>(kLanes, n - i));
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// y[i] += x[i] for i in [0, n).
inline void add_to(const float* x, int64_t n, float* y) {
  for_lanes(n, [&](int64_t i, int64_t count) {
    store(y + i, load(y + i, count) + load(x + i, count), count);
  });
}

/// x[n, width] += bias[width] on every row. `ldx` is the row length of x; 0: width.
void add_bias(ThreadPool& pool, const float* bias, int64_t n, int64_t width, float* x,
              int64_t ldx = 0);
/// sums[width] += sum over the rows of x[n, width], rows in order. `ldx` as above.
void add_column_sums(ThreadPool& pool, const float* x, int64_t n, int64_t width, float* sums,
                     int64_t ldx = 0);

}  // namespace longspan::cpu
