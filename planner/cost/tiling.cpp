#include "planner/cost/tiling.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace longspan {
namespace {

constexpr double kCountedRounds = 8;   // rounds up to which tiles are assigned one by one
constexpr int kMaxCountedWorkers = 8;  // workers up to which they are

// Tiles at the edge are smaller, and each is handed to the worker that is free first.
double counted_share(const Tiling::Shape& tile, double workers, const Product& p) {
  const double high = std::ceil(p.rows / tile.rows), wide = std::ceil(p.columns / tile.columns);
  const double pieces = high * wide * p.count;
  const double even = p.rows * p.columns * p.count / workers;
  const double full = std::min(p.rows, tile.rows) * std::min(p.columns, tile.columns);
  if (pieces <= 1) return 1 / workers;
  if (pieces > kCountedRounds * workers || workers > kMaxCountedWorkers) {
    // After many rounds the last one matters little: workers wait for half a tile on average. Few
    // rounds of many workers each take as long as a full tile.
    const double rounds = std::ceil(pieces / workers);
    if (rounds > kCountedRounds) return even / (even + full * (workers - 1) / (2 * workers));
    return std::min(1.0, even / (rounds * full));
  }
  std::array<double, kMaxCountedWorkers> load{};
  const int n = static_cast<int>(workers);
  for (double i = 0; i < high * p.count; ++i) {
    const double part_rows = std::min(tile.rows, p.rows - std::fmod(i, high) * tile.rows);
    for (double j = 0; j < wide; ++j) {
      int free = 0;
      for (int w = 1; w < n; ++w) free = load[w] < load[free] ? w : free;
      load[free] += part_rows * std::min(tile.columns, p.columns - j * tile.columns);
    }
  }
  return even / *std::max_element(load.begin(), load.begin() + n);
}

// All tiles take the same time, so the number of rounds determines the rate.
double padded_share(const Tiling::Shape& tile, double waited, double workers, const Product& p) {
  const double pieces =
      std::ceil(p.rows / tile.rows) * std::ceil(p.columns / tile.columns) * p.count;
  const double rounds =
      std::max(1.0, waited * std::ceil(pieces / workers) + (1 - waited) * pieces / workers);
  return p.rows * p.columns * p.count / (tile.rows * tile.columns * workers) / rounds;
}

}  // namespace

double tiled_share(const Tiling& tiling, double workers, const Product& product) {
  if (tiling.shapes.empty()) return 1;
  double best = 0;
  for (const Tiling::Shape& tile : tiling.shapes) {
    double share = 1;
    if (tiling.padded) {
      share = padded_share(tile, tiling.waited, workers, product);
    } else if (workers > 1) {
      share = counted_share(tile, workers, product);
    }
    best = std::max(best, tile.rate * share);
  }
  return best * product.depth / (product.depth + tiling.ramp);
}

}  // namespace longspan
