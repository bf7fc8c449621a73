#include "planner/cost/rate_curve.h"

#include <algorithm>
#include <cassert>
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
  assert(!empty() && a > 0 && b > 0 && c > 0);
  const std::array<double, 3> raw = {a, b, c};
  std::array<float, 3> x;
  for (int i = 0; i < 3; ++i) {
    // A unit axis costs no logarithm.
    const std::vector<float>& axis = axes_[i];
    x[i] = axis.size() == 1
               ? axis[0]
               : std::clamp(std::log2(static_cast<float>(raw[i])), axis.front(), axis.back());
  }
  return std::exp(gridded_ ? on_grid(x) : scattered(x));
}

bool RateCurve::covers(const std::array<double, 3>& shape) const {
  for (int i = 0; i < 3; ++i) {
    const std::vector<float>& axis = axes_[i];
    if (axis.size() < 2) continue;
    const float x = std::log2(static_cast<float>(shape[i]));
    if (x < axis.front() || x > axis.back()) return false;
  }
  return !empty();
}

float RateCurve::on_grid(const std::array<float, 3>& x) const {
  std::array<size_t, 3> low{}, step{};  // offsets in points_: to the cell's corner, to the next
  std::array<float, 3> t{};
  size_t stride = 1;
  for (int i = 2; i >= 0; --i) {
    const std::vector<float>& axis = axes_[i];
    if (axis.size() > 1) {
      size_t cell = 0;
      while (cell + 2 < axis.size() && axis[cell + 1] <= x[i]) ++cell;
      t[i] = (x[i] - axis[cell]) / (axis[cell + 1] - axis[cell]);
      low[i] = cell * stride;
      step[i] = stride;
    }
    stride *= axis.size();
  }
  const Point* corner = points_.data() + low[0] + low[1] + low[2];
  const auto between = [](float from, float to, float share) { return from + share * (to - from); };
  const auto along_last = [&](const Point* p) {
    return between(p->log_rate, p[step[2]].log_rate, t[2]);
  };
  const auto along_two = [&](const Point* p) {
    return between(along_last(p), along_last(p + step[1]), t[1]);
  };
  return between(along_two(corner), along_two(corner + step[0]), t[0]);
}

float RateCurve::scattered(const std::array<float, 3>& x) const {
  double sum = 0, weights = 0;
  for (const Point& p : points_) {
    double distance = 0;
    for (int i = 0; i < 3; ++i) distance += (p.where[i] - x[i]) * (p.where[i] - x[i]);
    const double weight = 1 / (distance * distance + 1e-6);
    sum += weight * p.log_rate;
    weights += weight;
  }
  return static_cast<float>(sum / weights);
}

}  // namespace longspan
