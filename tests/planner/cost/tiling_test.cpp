#include "planner/cost/tiling.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "hwprofiles/catalog.h"

using namespace longspan;

namespace {

Tiling of_cores() { return {.shapes = {{384, 512}}}; }

// Tiling as on a GPU: three shapes, tiles always whole.
Tiling of_multiprocessors() {
  return {.shapes = {{256, 128, 1}, {128, 128, 0.8}, {128, 64, 0.5}},
          .workers = 108,
          .padded = true,
          .waited = 0.7,
          .ramp = 188};
}

}  // namespace

TEST_CASE("tiles are handed to the worker that is free first") {
  const Tiling t = of_cores();
  CHECK(tiled_share({}, 2, {1000, 1000, 64}) == 1);
  CHECK(tiled_share(t, 1, {1000, 1000, 64}) == 1);
  CHECK(tiled_share(t, 2, {100, 100, 64}) == 0.5);            // one tile, one worker
  CHECK(tiled_share(t, 2, {768, 512, 64}) == 1);              // two equal ones
  CHECK(tiled_share(t, 2, {384, 512, 64, 2}) == 1);           // two equal ones, of two products
  CHECK(tiled_share(t, 2, {1152, 512, 64}) == Approx(0.75));  // three: 2 + 1
  // 384, 384, 232 rows: the small one follows the first.
  CHECK(tiled_share(t, 2, {1000, 256, 64}) == Approx(1000.0 / (2 * (384 + 232))));
  CHECK(tiled_share(t, 8, {768, 1024, 64}) == Approx(0.5));  // four tiles, eight workers
  CHECK(tiled_share(t, 4, {384, 1100, 64}) == Approx(1100.0 / (4 * 512)));
}

TEST_CASE("the share of many tiles nears 1 and never exceeds it") {
  for (const double workers : {2.0, 6.0, 8.0, 64.0, 128.0}) {
    CHECK(tiled_share(of_cores(), workers, {1 << 20, 4096, 64}) > 0.98);
    CHECK(tiled_share(of_multiprocessors(), workers, {1 << 20, 4096, 1 << 20}) > 0.98);
    for (double rows = 100; rows < 1e6; rows *= 1.7) {
      const double share = tiled_share(of_cores(), workers, {rows, 1536, 64});
      CHECK(share <= 1 + 1e-12);
      CHECK(share >= 1 / workers - 1e-12);
      CHECK(tiled_share(of_multiprocessors(), workers, {rows, 1536, 64}) <= 1 + 1e-12);
    }
  }
}

TEST_CASE("padded tiles: rounds count, and each product gets the shape that suits it") {
  Tiling t = of_multiprocessors();
  t.ramp = 0;
  t.waited = 1;
  const double one = 1.0 / 108;
  CHECK(tiled_share(t, 108, {256, 128, 64}) == Approx(4 * 0.5 * one));  // four of 128 x 64
  CHECK(tiled_share(t, 108, {256 * 108, 128, 64}) == Approx(1));
  CHECK(tiled_share(t, 108, {128, 128, 64, 108}) == Approx(0.8));  // a batch fills the device
  // 109 tiles take two rounds, unless the last one is split: then smaller tiles are better.
  t.shapes = {{256, 128, 1}};
  CHECK(tiled_share(t, 108, {256 * 109, 128, 64}) == Approx(109.0 / 216));
  t.waited = 0.5;
  CHECK(tiled_share(t, 108, {256 * 109, 128, 64}) == Approx(109.0 / (108 + 54.5)));
  // One row more than a tile costs two tiles.
  CHECK(tiled_share(t, 108, {257, 128, 64}) == Approx(257.0 / 512 * 2 * one));
}

TEST_CASE("beginning a tile takes as long as some depth of it") {
  const Tiling t = of_multiprocessors();
  const double deep = tiled_share(t, 108, {8192, 8192, 1 << 30});
  CHECK(tiled_share(t, 108, {8192, 8192, 188}) == Approx(deep / 2).epsilon(1e-6));
}

TEST_CASE("tiles explain the products measured on an A100 but for one factor") {
  const HardwareProfile hw = load_hardware("a100-80g-pcie");
  std::vector<double> full, plain;  // rates divided by shares, and unchanged
  for (const char* family : {"gemm_nt", "gemm_nn", "gemm_tn"}) {
    const RateTable& table = hw.rates.at(family);
    for (const RatePoint& point : table.points) {
      const auto [m, n, k] = point.shape;
      full.push_back(point.rate / tiled_share(table.tiling, 108, {m, n, k}));
      plain.push_back(point.rate);
    }
  }
  REQUIRE(full.size() > 60);
  const auto spread = [](std::vector<double> rates) {
    std::sort(rates.begin(), rates.end());
    const double middle = rates[rates.size() / 2];
    double sum = 0;
    for (const double rate : rates) sum += std::abs(rate / middle - 1);
    return sum / static_cast<double>(rates.size());
  };
  INFO(full.size() << " points: " << spread(full) << " of " << spread(plain));
  CHECK(spread(full) < 0.045);
  CHECK(spread(full) < 0.75 * spread(plain));
}
