// A table of measured rates, ready to be asked about any shape.
//
// Points that form a full grid are interpolated linearly in the logarithm of each coordinate;
// scattered ones by inverse distance in the same space. Outside the measured range the nearest edge
// holds: rates saturate, they do not extrapolate. Immutable after construction.
#pragma once

#include <array>
#include <vector>

#include "hwprofiles/hardware_profile.h"

namespace longspan {

class RateCurve {
 public:
  RateCurve() = default;
  explicit RateCurve(const RateTable& table);
  bool empty() const { return points_.empty(); }
  /// The rate at `shape`, in the table's unit. REQUIRES: !empty(), shape positive.
  double at(double a, double b = 1, double c = 1) const;
  /// Whether `shape` lies within what was measured, along every axis with more than one value.
  bool covers(const std::array<double, 3>& shape) const;

 private:
  struct Point {
    std::array<float, 3> where;
    float log_rate;
  };
  float on_grid(const std::array<float, 3>& x) const;    // the logarithm of the rate
  float scattered(const std::array<float, 3>& x) const;  // the logarithm of the rate

  std::vector<Point> points_;               // in grid order where gridded
  std::array<std::vector<float>, 3> axes_;  // sorted coordinates (log2) where gridded
  bool gridded_ = false;
};

}  // namespace longspan
