// Lower bounds on the resources of a step, as rows: seconds of every stream, and bytes of every
// tier at the moments where peaks occur. bounds.h fills it in; the search adds and compares rows.
//
// For one layout of ranks, chunk and block every row is a sum over independent knobs, so the search
// can choose all of them at once (search/relaxation.h). A plain value.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "planner/program/program.h"

namespace longspan {

/// The rows to compute; with `bytes` the rows of time stay 0.
enum class DemandOf { all, bytes };

struct Demand {
  using Streams = std::array<double, kStreamCount>;
  /// Moments: gradients complete; the first block's loss; the backward of the MLP and of attention
  /// in the last, the middle and the first layer.
  static constexpr int kMoments = 8;

  /// Busy seconds of each stream: forward and backward of all microbatches; once per step before
  /// the norm of the gradients is known (their reductions, and an early update); and after it (the
  /// update).
  Streams forward{}, backward{}, once{}, update{};
  /// Seconds of `backward` that every microbatch after the first adds.
  Streams again{};
  /// Expected seconds that compute waits for exchanges that no other work hides. Not a bound:
  /// streams may overlap better.
  double waited_forward = 0, waited_backward = 0;
  double loss = 0;                               ///< the loss's part of compute's `backward`
  double embed_forward = 0, embed_backward = 0;  ///< the embedding's parts of compute's rows
  std::array<std::array<double, kTierCount>, kMoments> bytes{};
  static constexpr int kLossMoment = 1;
  int64_t loss_bytes = 0;  ///< the loss's own part of the device's bytes at that moment

  double of_step(int stream) const {
    return forward[stream] + backward[stream] + once[stream] + update[stream];
  }
  /// Lower bound on the step: the busiest stream; and, as no parameter in `update` is updated
  /// before the norm of all gradients is known, forward and backward compute plus a stream of the
  /// update.
  double step_seconds() const {
    const int compute = static_cast<int>(Stream::compute);
    const double before = of_step(compute) - update[compute];
    double seconds = 0;
    for (int s = 0; s < kStreamCount; ++s) {
      seconds = std::max({seconds, of_step(s), before + update[s]});
    }
    return seconds;
  }
  /// Seconds of compute without the update. With everything on the device and nothing recomputed,
  /// it is a lower bound for all strategies that differ only in that.
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
