#include "planner/cost/rate_curve.h"

#include <catch2/catch.hpp>
#include <cmath>

using longspan::RateCurve;
using longspan::RateTable;

namespace {

// rate = a^0.5 * b^0.25 * c is linear in the logarithms: interpolation must give it back exactly.
double power_law(double a, double b, double c) { return std::sqrt(a) * std::pow(b, 0.25) * c; }

RateTable power_grid() {
  RateTable table;
  for (const double c : {1.0, 4.0}) {
    for (const double a : {256.0, 1.0, 16.0}) {  // any order
      for (const double b : {2.0, 32.0}) table.points.push_back({{a, b, c}, power_law(a, b, c)});
    }
  }
  return table;
}

}  // namespace

TEST_CASE("a curve without points is empty") { CHECK(RateCurve().empty()); }

TEST_CASE("one point holds everywhere") {
  RateTable table;
  table.points = {{{64, 64, 64}, 5e9}};
  const RateCurve curve(table);
  CHECK_FALSE(curve.empty());
  CHECK(curve.at(64, 64, 64) == Approx(5e9));
  CHECK(curve.at(1) == Approx(5e9));
  CHECK(curve.at(1e9, 3, 7) == Approx(5e9));
}

TEST_CASE("a grid is met at its points and interpolated linearly in the logarithms") {
  const RateCurve curve(power_grid());
  CHECK(curve.at(16, 2, 4) == Approx(power_law(16, 2, 4)).epsilon(1e-5));
  CHECK(curve.at(1, 32, 1) == Approx(power_law(1, 32, 1)).epsilon(1e-5));
  for (const double a : {1.0, 3.0, 16.0, 100.0, 256.0}) {
    for (const double b : {2.0, 8.0, 31.0}) {
      for (const double c : {1.0, 2.5, 4.0}) {
        CHECK(curve.at(a, b, c) == Approx(power_law(a, b, c)).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("outside the grid the nearest edge holds") {
  const RateCurve curve(power_grid());
  CHECK(curve.at(1e6, 8, 2) == Approx(power_law(256, 8, 2)).epsilon(1e-4));
  CHECK(curve.at(4, 1, 2) == Approx(power_law(4, 2, 2)).epsilon(1e-4));
  CHECK(curve.at(1e9, 1e9, 1e9) == Approx(power_law(256, 32, 4)).epsilon(1e-4));
}

TEST_CASE("a curve covers what lies between its points, along axes with more than one value") {
  RateTable table;
  for (const double rows : {16.0, 64.0}) {
    for (const double width : {8.0, 32.0}) table.points.push_back({{rows, width, 1}, 1});
  }
  const RateCurve curve(table);
  CHECK(curve.covers({16, 8, 1}));
  CHECK(curve.covers({64, 32, 1}));
  CHECK(curve.covers({20, 9, 1000}));
  CHECK(!curve.covers({15, 9, 1}));
  CHECK(!curve.covers({65, 9, 1}));
  CHECK(!curve.covers({20, 33, 1}));
  CHECK(!RateCurve().covers({1, 1, 1}));
}

TEST_CASE("a table over one coordinate ignores the others") {
  RateTable table;
  table.points = {{{1024, 1, 1}, 1e9}, {{4096, 1, 1}, 4e9}};
  const RateCurve curve(table);
  CHECK(curve.at(2048) == Approx(2e9).epsilon(1e-5));
  CHECK(curve.at(2048, 77, 99) == Approx(2e9).epsilon(1e-5));
}

TEST_CASE("scattered points: exact where one stands, between their rates elsewhere") {
  RateTable table;
  table.points = {{{16, 16, 1}, 1e9}, {{64, 256, 1}, 8e9}, {{1024, 32, 1}, 3e9}};
  const RateCurve curve(table);
  CHECK(curve.at(64, 256, 1) == Approx(8e9).epsilon(1e-3));
  CHECK(curve.at(1024, 32, 1) == Approx(3e9).epsilon(1e-3));
  const double near_second = curve.at(70, 240, 1);
  CHECK(near_second > 6e9);
  CHECK(near_second <= 8e9);
  const double between = curve.at(128, 64, 1);
  CHECK(between > 1e9);
  CHECK(between < 8e9);
}
