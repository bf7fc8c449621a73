// The linear relaxation of choosing a value for every knob of one layout.
//
// For one layout of ranks, chunk and block the demand of a step (evaluate/demand.h) is a sum over
// groups of knobs: a base, plus the addition of each group's value. The relaxation allows a mixture
// of values in every group and finds the best mixture. Its objective is a lower bound for all
// choices. Its mixture tells where to round; a mixture of "keep" and one other policy of a saved
// tensor is a plan as it is (SavedPolicy::fraction), and so is one of optimizer states on the
// device and off it. The solver is a dense simplex on a condensed tableau of about thirty rows and
// a hundred columns.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/evaluate/candidate.h"

namespace longspan {

/// Demand as rows:
/// - bounds on time: seconds of every stream in the whole step; and of compute before the update
/// plus that stream's update;
/// - expected time: seconds of every stream in the forward and the backward of the first and the
/// second half of the layers, and in the update, one after the other, with a part of what other
/// streams do meanwhile;
/// - bytes: shares of the limits at every moment, tier by tier.
inline constexpr int kHalves = 4;  // forward of the first and second half, backward of each
inline constexpr int kPhases = kHalves + 1;
inline constexpr int kBoundRows = 2 * kStreamCount;
inline constexpr int kExpectedRows = kPhases * kStreamCount;
inline constexpr int kTimeRows = kBoundRows + kExpectedRows;
inline constexpr int kByteRows = Demand::kMoments * kTierCount;
inline constexpr int kRows = kTimeRows + kByteRows;
using DemandRows = std::array<double, kRows>;
inline int tier_of_row(int row) { return (row - kTimeRows) % kTierCount; }

/// Rows of `demand`, evenly over both halves. `seconds_scale` multiplies seconds; bytes become
/// shares of `limits`.
DemandRows rows_of(const Demand& demand, double seconds_scale, const TierBytes& limits);
/// The rows with all work moved to the first half of the layers.
DemandRows in_first_half(DemandRows rows);

/// The objective and the bounds of a relaxation.
struct RelaxationGoal {
  /// The part that a row is in; -1: none. The objective is the sum of all parts; a part is the
  /// maximum of its rows.
  std::array<int, kRows> part;
  std::array<double, kRows> weight;   ///< factor of a row within its part
  std::array<double, kRows> at_most;  ///< bound of a row; infinite: none
};

struct Mixture {
  double objective = 0;
  double overflow = 0;                      ///< of the worst bounded row, over its bound
  std::vector<std::vector<double>> shares;  ///< by group and value; each group sums to 1
  bool optimal = true;  ///< false: the simplex gave up; the objective is no bound
};

class Relaxation {
 public:
  /// `base`: the demand with the first value of every group. `values[g][v]`: the addition of value
  /// v of group g; values[g][0] is zero.
  Relaxation(const DemandRows& base, std::vector<std::vector<DemandRows>> values);

  /// `allowed[g]`: bit v is set if group g may take value v; values from 64 on are always allowed;
  /// empty: all are allowed. REQUIRES: each group has an allowed value.
  Mixture solve(const RelaxationGoal& goal, const std::vector<uint64_t>& allowed = {}) const;

  size_t groups() const { return values_.size(); }

 private:
  DemandRows base_;
  std::vector<std::vector<DemandRows>> values_;
};

}  // namespace longspan
