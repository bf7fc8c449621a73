// What a step of a configuration needs at least, row by row: seconds of every stream, bytes of
// every tier at the moments where peaks are. Bounds fill it in; the search adds and compares it.
//
// For one layout of ranks, chunk and block every row is a sum over independent knobs. That is what
// lets the search choose all of them at once (search/relaxation.h). A plain value.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "planner/program/program.h"

namespace longspan {

/// Which rows are wanted: where memory alone is asked about, the others are left 0.
enum class DemandOf { all, bytes };

struct Demand {
  using Streams = std::array<double, kStreamCount>;
  /// Moments: gradients complete; the first block's loss; the backward of the MLP and of attention
  /// in the last layer, in the middle one and in the first.
  static constexpr int kMoments = 8;

  /// Seconds that each stream is busy: forward and backward of all microbatches, once a step before
  /// the norm of the gradients is known (their reductions), and after it (the update).
  Streams forward{}, backward{}, once{}, update{};
  /// Seconds that every microbatch after the first adds in the backward.
  Streams again{};
  /// Seconds that compute is likely to wait for exchanges which nothing else is there to hide. No
  /// bound: streams may overlap better.
  double waited_forward = 0, waited_backward = 0;
  double loss = 0;  ///< the part of compute's `backward` at the loss
  std::array<std::array<double, kTierCount>, kMoments> bytes{};

  double of_step(int stream) const {
    return forward[stream] + backward[stream] + once[stream] + update[stream];
  }
  /// No step is shorter than its busiest stream; and no parameter is updated before the norm of all
  /// gradients is known, so the update's streams follow all of forward and backward compute.
  double step_seconds() const {
    const int compute = static_cast<int>(Stream::compute);
    const double before = of_step(compute) - update[compute];
    double seconds = 0;
    for (int s = 0; s < kStreamCount; ++s) {
      seconds = std::max({seconds, of_step(s), before + update[s]});
    }
    return seconds;
  }
  /// Compute's alone, without the update: with everything on the device and nothing recomputed it
  /// is the least of all strategies that differ in nothing else.
  double compute_seconds() const {
    constexpr int compute = static_cast<int>(Stream::compute);
    return forward[compute] + backward[compute];
  }
  std::array<int64_t, kTierCount> peak_bytes() const {
    std::array<int64_t, kTierCount> peak{};
    for (const auto& moment : bytes) {
      for (int tier = 0; tier < kTierCount; ++tier) {
        peak[tier] = std::max(peak[tier], static_cast<int64_t>(moment[tier]));
      }
    }
    return peak;
  }
};

}  // namespace longspan
