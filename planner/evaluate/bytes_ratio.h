// The ratio per tier between two counts of a step's bytes: arenas over live bytes, which is the
// cost of packing, or live bytes over their lower bounds. The ratio of one candidate is an estimate
// for similar ones.
#pragma once

#include <algorithm>
#include <array>

#include "planner/evaluate/candidate.h"

namespace longspan {

class BytesRatio {
 public:
  BytesRatio() { times_.fill(1); }
  /// The ratio `more` / `less`, at least 1 on every tier.
  BytesRatio(const TierBytes& more, const TierBytes& less) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      const auto least = static_cast<double>(std::max<int64_t>(1, less[tier]));
      times_[tier] = std::max(1.0, static_cast<double>(more[tier]) / least);
    }
  }

  double operator[](int tier) const { return times_[tier]; }
  /// `less` times the ratio.
  TierBytes of(const TierBytes& less) const {
    TierBytes more{};
    for (int tier = 0; tier < kTierCount; ++tier) {
      more[tier] = static_cast<int64_t>(times_[tier] * static_cast<double>(less[tier]));
    }
    return more;
  }
  /// Takes the lower ratio for each tier.
  void lower_to(const BytesRatio& other) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      times_[tier] = std::min(times_[tier], other.times_[tier]);
    }
  }
  /// The ratio with its excess over 1 multiplied by `part`.
  BytesRatio damped(double part) const {
    BytesRatio damped = *this;
    for (double& times : damped.times_) times = 1 + part * (times - 1);
    return damped;
  }

 private:
  std::array<double, kTierCount> times_;
};

}  // namespace longspan
