#include "planner/search/relaxation.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace longspan {
namespace {

/// Overlap is never perfect: this part of the time that could be hidden is not.
constexpr double kUnhidden = 0.03;
constexpr double kTiny = 1e-9;
constexpr double kOverflowCost = 1e4;  // bounds are kept if possible, at any cost
constexpr int kMostPivots = 1000;
constexpr int kPatience = 200;  // pivots by steepest price; then by Bland's rule, which ends

// Minimises cost * x subject to rows * x <= right, x >= 0, in condensed form: a column for each
// variable outside the basis, a row for each in it. Variable j < columns is the j-th, the others
// slacks.
class Tableau {
 public:
  Tableau(int rows, int columns)
      : rows_(rows),
        columns_(columns),
        width_(columns + 1),
        cells_(static_cast<size_t>(rows + 1) * static_cast<size_t>(width_), 0.0),
        basic_(static_cast<size_t>(rows)),
        free_(static_cast<size_t>(columns)) {
    for (int r = 0; r < rows; ++r) basic_[r] = columns + r;
    for (int c = 0; c < columns; ++c) free_[c] = c;
  }

  double& at(int row, int column) { return cells_[static_cast<size_t>(row * width_ + column)]; }
  double& right(int row) { return at(row, columns_); }
  double& cost(int column) { return at(rows_, column); }

  void pivot(int row, int column) {
    const double inverse = 1 / at(row, column);
    double* const own = &at(row, 0);
    for (int c = 0; c < width_; ++c) own[c] *= inverse;
    own[column] = inverse;
    for (int r = 0; r <= rows_; ++r) {
      if (r == row) continue;
      double* const other = &at(r, 0);
      const double factor = other[column];
      if (factor == 0) continue;
      other[column] = 0;
      for (int c = 0; c < width_; ++c) other[c] -= factor * own[c];
      other[column] = -factor * inverse;
    }
    std::swap(basic_[row], free_[column]);
  }

  /// Whether the optimum was reached. REQUIRES: right sides are not negative.
  bool minimise() {
    for (int count = 0; count < kMostPivots; ++count) {
      const int column = entering(count < kPatience);
      if (column < 0) return true;
      const int row = leaving(column);
      if (row < 0) return false;  // unbounded; does not occur here
      pivot(row, column);
    }
    return false;
  }

  double value(int variable) {
    for (int r = 0; r < rows_; ++r) {
      if (basic_[r] == variable) return std::max(0.0, right(r));
    }
    return 0;
  }

 private:
  int entering(bool steepest) {
    int best = -1;
    double least = -kTiny;
    for (int c = 0; c < columns_; ++c) {
      const double price = cost(c);
      if (price >= (steepest ? least : -kTiny)) continue;
      if (!steepest && best >= 0 && free_[c] > free_[best]) continue;
      best = c;
      least = price;
    }
    return best;
  }
  int leaving(int column) {
    int best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (int r = 0; r < rows_; ++r) {
      const double step = at(r, column);
      if (step <= kTiny) continue;
      const double ratio = right(r) / step;
      if (ratio < least - 1e-12 || (ratio <= least && best >= 0 && basic_[r] < basic_[best])) {
        best = r;
        least = ratio;
      }
    }
    return best;
  }

  int rows_, columns_, width_;
  std::vector<double> cells_;
  std::vector<int> basic_, free_;
};

}  // namespace

DemandRows rows_of(const Demand& d, double scale, const TierBytes& limits) {
  DemandRows rows;
  const int compute = static_cast<int>(Stream::compute);
  const double before = d.of_step(compute) - d.update[compute];
  double sums[kPhases] = {};
  for (int s = 0; s < kStreamCount; ++s) {
    rows[s] = scale * d.of_step(s);
    rows[kStreamCount + s] = scale * (before + d.update[s]);
    const bool waits = s == compute;
    const double forward = (d.forward[s] + (waits ? d.waited_forward : 0)) / 2;
    const double backward = (d.backward[s] + d.once[s] + (waits ? d.waited_backward : 0)) / 2;
    const double phases[kPhases] = {forward, forward, backward, backward, d.update[s]};
    for (int p = 0; p < kPhases; ++p) {
      rows[kBoundRows + p * kStreamCount + s] = scale * (1 - kUnhidden) * phases[p];
      sums[p] += scale * kUnhidden * phases[p];
    }
  }
  for (int p = 0; p < kPhases; ++p) {
    for (int s = 0; s < kStreamCount; ++s) rows[kBoundRows + p * kStreamCount + s] += sums[p];
  }
  for (int m = 0; m < Demand::kMoments; ++m) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      rows[kTimeRows + m * kTierCount + tier] =
          d.bytes[m][tier] / std::max(1.0, static_cast<double>(limits[tier]));
    }
  }
  return rows;
}

DemandRows in_first_half(DemandRows rows) {
  for (int p = 0; p < kHalves; p += 2) {
    double* const first = rows.data() + kBoundRows + p * kStreamCount;
    double* const second = first + kStreamCount;
    for (int s = 0; s < kStreamCount; ++s) first[s] += std::exchange(second[s], 0.0);
  }
  return rows;
}

Relaxation::Relaxation(const DemandRows& base, std::vector<std::vector<DemandRows>> values)
    : base_(base), values_(std::move(values)) {}

Mixture Relaxation::solve(const RelaxationGoal& goal, const std::vector<uint64_t>& allowed) const {
  struct Column {
    size_t group, value;
  };
  const auto may_take = [&](size_t g, size_t v) {
    return allowed.empty() || v >= 64 || (allowed[g] >> v & 1) != 0;
  };
  // The base includes the first allowed value of every group; other values add their difference to
  // it.
  DemandRows base = base_, least, most;
  std::vector<size_t> first(values_.size(), 0);
  for (size_t g = 0; g < values_.size(); ++g) {
    while (!may_take(g, first[g])) ++first[g];
    for (int r = 0; r < kRows; ++r) base[r] += values_[g][first[g]][r];
  }
  const auto added = [&](const Column& c, int row) {
    return values_[c.group][c.value][row] - values_[c.group][first[c.group]][row];
  };
  std::vector<Column> columns;
  least = most = base;
  for (size_t g = 0; g < values_.size(); ++g) {
    DemandRows low{}, high{};
    for (size_t v = first[g] + 1; v < values_[g].size(); ++v) {
      if (!may_take(g, v)) continue;
      columns.push_back({g, v});
      for (int r = 0; r < kRows; ++r) {
        low[r] = std::min(low[r], added(columns.back(), r));
        high[r] = std::max(high[r], added(columns.back(), r));
      }
    }
    for (int r = 0; r < kRows; ++r) {
      least[r] += low[r];
      most[r] += high[r];
    }
  }
  // Most rows cannot bind, and are left out.
  double floors[kPhases] = {}, scale = 0;
  for (int r = 0; r < kRows; ++r) {
    if (goal.part[r] < 0) continue;
    double& floor = floors[goal.part[r]];
    floor = std::max(floor, goal.weight[r] * least[r]);
  }
  for (const double floor : floors) scale += floor;
  scale = scale > 0 ? 1 / scale : 1;
  std::vector<int> minimised, bounded;
  for (int r = 0; r < kRows; ++r) {
    if (goal.part[r] >= 0 && goal.weight[r] * most[r] > floors[goal.part[r]]) {
      minimised.push_back(r);
    }
    if (most[r] > goal.at_most[r]) bounded.push_back(r);
  }
  std::vector<int> group_row(values_.size(), -1);
  const auto rows = static_cast<int>(minimised.size() + bounded.size());
  int groups = 0;
  for (const Column& c : columns) {
    if (group_row[c.group] < 0) group_row[c.group] = rows + groups++;
  }
  // The last variables: the excess of each part of the objective over its floor, and the overflow.
  const auto count = static_cast<int>(columns.size());
  const int overflow = count + kPhases;
  Tableau t(rows + groups, count + kPhases + 1);
  int row = 0;
  // The most violated rows: the initial basis contains the variables that repair them.
  int worst[kPhases + 1];
  std::fill(std::begin(worst), std::end(worst), -1);
  const auto note = [&](int variable) {
    if (t.right(row) < (worst[variable] < 0 ? 0 : t.right(worst[variable]))) worst[variable] = row;
    ++row;
  };
  for (const int r : minimised) {
    const int part = goal.part[r];
    const double weight = scale * goal.weight[r];
    for (int c = 0; c < count; ++c) t.at(row, c) = weight * added(columns[c], r);
    t.at(row, count + part) = -1;
    t.right(row) = scale * floors[part] - weight * base[r];
    note(part);
  }
  for (const int r : bounded) {
    const double share = 1 / std::max(1e-12, goal.at_most[r]);
    for (int c = 0; c < count; ++c) t.at(row, c) = share * added(columns[c], r);
    t.at(row, overflow) = -1;
    t.right(row) = 1 - share * base[r];
    note(kPhases);
  }
  for (int c = 0; c < count; ++c) t.at(group_row[columns[c].group], c) = 1;
  for (int g = 0; g < groups; ++g) t.right(rows + g) = 1;
  t.cost(overflow) = kOverflowCost;
  for (int part = 0; part < kPhases; ++part) t.cost(count + part) = 1;
  for (int variable = 0; variable <= kPhases; ++variable) {
    if (worst[variable] >= 0) t.pivot(worst[variable], count + variable);
  }

  Mixture mixture;
  mixture.optimal = t.minimise();
  for (int part = 0; part < kPhases; ++part) {
    mixture.objective += floors[part] + t.value(count + part) / scale;
  }
  mixture.overflow = t.value(overflow);
  if (mixture.overflow < 1e-7) mixture.overflow = 0;
  mixture.shares.resize(values_.size());
  for (size_t g = 0; g < values_.size(); ++g) {
    mixture.shares[g].assign(values_[g].size(), 0);
    mixture.shares[g][first[g]] = 1;
  }
  for (int c = 0; c < count; ++c) {
    const double share = std::min(1.0, t.value(c));
    if (share < 1e-7) continue;
    std::vector<double>& of_group = mixture.shares[columns[c].group];
    of_group[columns[c].value] = share;
    double& rest = of_group[first[columns[c].group]];
    rest = rest - share < 1e-7 ? 0 : rest - share;
  }
  return mixture;
}

}  // namespace longspan
