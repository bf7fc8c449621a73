// How many times as much memory one count of a step's bytes says as another, per tier: arenas as
// live bytes, which is what packing adds, or live bytes as what bounds see. What is seen of one
// candidate says what to expect of those that are like it.
#pragma once

#include <algorithm>
#include <array>

#include "planner/evaluate/candidate.h"

namespace longspan {

class BytesRatio {
 public:
  BytesRatio() { times_.fill(1); }
  /// At least 1 on every tier.
  BytesRatio(const TierBytes& more, const TierBytes& less) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      const auto least = static_cast<double>(std::max<int64_t>(1, less[tier]));
      times_[tier] = std::max(1.0, static_cast<double>(more[tier]) / least);
    }
  }

  double operator[](int tier) const { return times_[tier]; }
  /// What `less` comes to by the other count.
  TierBytes of(const TierBytes& less) const {
    TierBytes more{};
    for (int tier = 0; tier < kTierCount; ++tier) {
      more[tier] = static_cast<int64_t>(times_[tier] * static_cast<double>(less[tier]));
    }
    return more;
  }
  /// Takes the lesser of both for each tier.
  void lower_to(const BytesRatio& other) {
    for (int tier = 0; tier < kTierCount; ++tier) {
      times_[tier] = std::min(times_[tier], other.times_[tier]);
    }
  }
  /// With `part` of what exceeds 1.
  BytesRatio damped(double part) const {
    BytesRatio damped = *this;
    for (double& times : damped.times_) times = 1 + part * (times - 1);
    return damped;
  }

 private:
  std::array<double, kTierCount> times_;
};

}  // namespace longspan
