// All knobs of one layout at once: the linear relaxation of choosing a value for each.
//
// For one layout of ranks, chunk and block the demand of a step (evaluate/demand.h) is a sum over
// groups of knobs: what the layout needs anyway, and what the chosen value of each group adds. A
// relaxation lets every group take a mixture of its values and asks which mixture is best. Its
// objective is a lower bound for all choices there are; its mixture says where to round, and a
// mixture of "keep" and one other policy of a saved tensor is a plan as it is (SavedPolicy::
// fraction). A dense simplex on a condensed tableau solves it: some thirty rows, a hundred columns.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/evaluate/candidate.h"

namespace longspan {

/// Demand as rows. Bounds on time: seconds of every stream in all of a step, and of compute before
/// the update and then that stream. What is expected: seconds of every stream in the forward and in
/// the backward of the first half of the layers and of the second, and in the update, one after the
/// other, with a part of what other streams do meanwhile. Bytes: shares of the limits at every
/// moment, tier by tier.
inline constexpr int kHalves = 4;  // forward of the first and of the second, backward of each
inline constexpr int kPhases = kHalves + 1;
inline constexpr int kBoundRows = 2 * kStreamCount;
inline constexpr int kExpectedRows = kPhases * kStreamCount;
inline constexpr int kTimeRows = kBoundRows + kExpectedRows;
inline constexpr int kByteRows = Demand::kMoments * kTierCount;
inline constexpr int kRows = kTimeRows + kByteRows;
using DemandRows = std::array<double, kRows>;
inline int tier_of_row(int row) { return (row - kTimeRows) % kTierCount; }

/// `seconds_scale` multiplies seconds; bytes become shares of `limits`. Both halves are alike.
DemandRows rows_of(const Demand& demand, double seconds_scale, const TierBytes& limits);
/// The same of what is done in the first half of the layers alone.
DemandRows in_first_half(DemandRows rows);

/// The objective, and the bounds.
struct RelaxationGoal {
  /// The objective is a sum over parts, each the largest of the rows that name it; -1: the row is
  /// in no part.
  std::array<int, kRows> part;
  std::array<double, kRows> weight;   ///< of a row within its part
  std::array<double, kRows> at_most;  ///< infinite: no bound
};

struct Mixture {
  double objective = 0;
  double overflow = 0;                      ///< by which the worst bounded row exceeds its bound
  std::vector<std::vector<double>> shares;  ///< by group and value, each group's sum to 1
  bool optimal = true;                      ///< false: the simplex gave up; no bound
};

class Relaxation {
 public:
  /// `base`: the demand with the first value of every group. `values[g][v]`: what value v of group
  /// g adds to it; values[g][0] is zero.
  Relaxation(const DemandRows& base, std::vector<std::vector<DemandRows>> values);

  /// `allowed[g]`: bit v says whether group g may take value v (of the first 64; those behind
  /// always may); empty: all may. REQUIRES: each group may take one at least.
  Mixture solve(const RelaxationGoal& goal, const std::vector<uint64_t>& allowed = {}) const;

  size_t groups() const { return values_.size(); }

 private:
  DemandRows base_;
  std::vector<std::vector<DemandRows>> values_;
};

}  // namespace longspan
