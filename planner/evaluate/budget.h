// The memory a search may plan with: what the hardware has, and what laying buffers out costs.
//
// The fast path knows the sum of live buffers, not the arena; an arena is that sum plus what
// packing loses. The loss is learned from layouts that turned out too large, so that the next
// question to the fast path leaves room for it. Not thread-safe: one per search.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "planner/plan/plan.h"

namespace longspan {

using TierBytes = std::array<int64_t, kTierCount>;

class Budget {
 public:
  explicit Budget(const HardwareProfile& hw) : limits_(capacities(hw)) {}

  const TierBytes& limits() const { return limits_; }

  /// How far arenas of these sizes exceed the capacities, relative and summed; 0: they fit.
  double overflow(const TierBytes& arenas) const { return excess(arenas, {1, 1, 1}); }
  /// The same for sums of live buffers, with the packing learned so far.
  double overflow_of_live(const TierBytes& live) const { return excess(live, packing_); }

  /// Remembers what packing lost on every tier that turned out too small.
  void learn(const TierBytes& live, const TierBytes& arenas) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      if (arenas[tier] <= limits_[tier] || live[tier] <= 0) continue;
      const double lost = static_cast<double>(arenas[tier]) / static_cast<double>(live[tier]);
      packing_[tier] = std::max(packing_[tier], kMargin * lost);
    }
  }

 private:
  static constexpr double kMargin = 1.002;  // the next layout packs a little differently

  double excess(const TierBytes& bytes, const std::array<double, kTierCount>& factor) const {
    double sum = 0;
    for (int tier = 0; tier < kTierCount; ++tier) {
      const double share = static_cast<double>(bytes[tier]) * factor[tier] /
                           std::max(1.0, static_cast<double>(limits_[tier]));
      sum += std::max(0.0, share - 1);
    }
    return sum;
  }

  TierBytes limits_;
  std::array<double, kTierCount> packing_{1, 1, 1};
};

}  // namespace longspan
