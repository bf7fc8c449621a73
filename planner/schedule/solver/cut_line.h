// Cuts a row of items into consecutive pieces optimally. Internal to planner/schedule/solver.
//
// Used for layers into stages, sequences into microbatches, and lengths into buckets. Each piece
// has a price, and either the sum or the maximum of the prices is minimized, exactly, by dynamic
// programming over the ends of pieces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace longspan {

enum class Smallest { sum, dearest };

/// The ends of `pieces` pieces of [0, count), each of one item or more: piece k is [ends[k - 1],
/// ends[k]). `price(k, begin, end)` is the price of a piece, infinity if it is not allowed. Empty
/// if no cut is allowed. REQUIRES: prices >= 0.
inline std::vector<int64_t> cut_line(
    int64_t count, int64_t pieces, Smallest smallest,
    const std::function<double(int64_t piece, int64_t begin, int64_t end)>& price) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  if (pieces < 1 || pieces > count) return {};
  std::vector<std::vector<double>> least(pieces + 1, std::vector<double>(count + 1, kNever));
  std::vector<std::vector<int64_t>> from(pieces + 1, std::vector<int64_t>(count + 1, -1));
  least[0][0] = 0;
  for (int64_t k = 1; k <= pieces; ++k) {
    for (int64_t end = k; end <= count - (pieces - k); ++end) {
      for (int64_t begin = k - 1; begin < end; ++begin) {
        const double before = least[k - 1][begin];
        if (before >= least[k][end]) continue;
        const double own = price(k - 1, begin, end);
        const double all = smallest == Smallest::sum ? before + own : std::max(before, own);
        if (all >= least[k][end]) continue;
        least[k][end] = all;
        from[k][end] = begin;
      }
    }
  }
  if (least[pieces][count] == kNever) return {};
  std::vector<int64_t> ends(pieces);
  for (int64_t k = pieces, end = count; k > 0; end = from[k][end], --k) ends[k - 1] = end;
  return ends;
}

}  // namespace longspan
