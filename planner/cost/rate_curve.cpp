#include "planner/cost/rate_curve.h"

#include <algorithm>
#include <cmath>

namespace longspan {

RateCurve::RateCurve(const RateTable& table) {
  for (const RatePoint& p : table.points) {
    Point point;
    for (int i = 0; i < 3; ++i) point.where[i] = static_cast<float>(std::log2(p.shape[i]));
    point.log_rate = static_cast<float>(std::log(p.rate));
    points_.push_back(point);
  }
  size_t cells = 1;
  for (int i = 0; i < 3; ++i) {
    for (const Point& p : points_) axes_[i].push_back(p.where[i]);
    std::sort(axes_[i].begin(), axes_[i].end());
    axes_[i].erase(std::unique(axes_[i].begin(), axes_[i].end()), axes_[i].end());
    cells *= axes_[i].size();
  }
  std::sort(points_.begin(), points_.end(),
            [](const Point& a, const Point& b) { return a.where < b.where; });
  const bool distinct = std::adjacent_find(points_.begin(), points_.end(), [](auto& a, auto& b) {
                          return a.where == b.where;
                        }) == points_.end();
  gridded_ = distinct && cells == points_.size();
}

double RateCurve::at(double a, double b, double c) const {
  const std::array<double, 3> raw = {a, b, c};
  std::array<float, 3> x;
  for (int i = 0; i < 3; ++i) {
    // Clamped first: most lookups along a unit axis then cost no logarithm.
    x[i] = axes_[i].size() == 1 ? axes_[i][0]
                                : std::clamp(static_cast<float>(std::log2(raw[i])),
                                             axes_[i].front(), axes_[i].back());
  }
  if (gridded_) {
    std::array<size_t, 3> cell{};
    std::array<float, 3> t{};
    for (int i = 0; i < 3; ++i) {
      const std::vector<float>& axis = axes_[i];
      if (axis.size() == 1) continue;
      const auto above = std::upper_bound(axis.begin(), axis.end() - 1, x[i]);
      cell[i] = static_cast<size_t>(std::max<std::ptrdiff_t>(0, above - axis.begin() - 1));
      t[i] = (x[i] - axis[cell[i]]) / (axis[cell[i] + 1] - axis[cell[i]]);
    }
    double value = 0;
    for (int corner = 0; corner < 8; ++corner) {
      double weight = 1;
      size_t index = 0;
      for (int i = 0; i < 3; ++i) {
        const int high = corner >> i & 1;
        weight *= high ? t[i] : 1 - t[i];
        if (weight == 0) break;
        index = index * axes_[i].size() + cell[i] + high;
      }
      if (weight > 0) value += weight * points_[index].log_rate;
    }
    return std::exp(value);
  }
  double sum = 0, weights = 0;
  for (const Point& p : points_) {
    double distance = 0;
    for (int i = 0; i < 3; ++i) distance += (p.where[i] - x[i]) * (p.where[i] - x[i]);
    const double weight = 1 / (distance * distance + 1e-6);
    sum += weight * p.log_rate;
    weights += weight;
  }
  return std::exp(sum / weights);
}

}  // namespace longspan
