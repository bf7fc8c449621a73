#include "engine/cpu/rows.h"

namespace longspan::cpu {

void add_bias(ThreadPool& pool, const float* bias, int64_t n, int64_t width, float* x,
              int64_t ldx) {
  const int64_t row = ldx > 0 ? ldx : width;
  for_rows(pool, n, width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) add_to(bias, width, x + i * row);
  });
}

void add_column_sums(ThreadPool& pool, const float* x, int64_t n, int64_t width, float* sums,
                     int64_t ldx) {
  const int64_t row = ldx > 0 ? ldx : width;
  for_pieces(pool, ceil_div(width, kSumCols), [&](int64_t piece) {
    const int64_t first = piece * kSumCols;
    const int64_t cols = std::min(kSumCols, width - first);
    for (int64_t begin = 0; begin < n; begin += kSumRows) {
      const int64_t end = std::min(n, begin + kSumRows);
      for_lanes(cols, [&](int64_t j, int64_t count) {
        Vec sum{};
        for (int64_t i = begin; i < end; ++i) sum += load(x + i * row + first + j, count);
        float* target = sums + first + j;
        store(target, load(target, count) + sum, count);
      });
    }
  });
}

}  // namespace longspan::cpu
