// How long every stream is busy in a step, and what the step is likely to take. Internal to the
// bounds.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>

#include "planner/program/program.h"

namespace longspan {

/// Seconds that every stream is busy, filled op by op.
struct Busy {
  using Streams = std::array<double, kStreamCount>;
  /// Of `total`: what is done before backward, what is done once a step and not for a microbatch,
  /// and of that what follows the norm of the gradients.
  Streams total{}, forward{}, once{}, update{};
  /// Of exchanges, by compute.
  double waited = 0, waited_forward = 0;
  /// Of a microbatch, by compute.
  double loss = 0;

  double& operator[](Stream s) { return total[static_cast<int>(s)]; }
  void in_forward(Stream s, double seconds) { add(s, seconds, forward); }
  void once_a_step(Stream s, double seconds) { add(s, seconds, once); }
  void after_norm(Stream s, double seconds) {
    once_a_step(s, seconds);
    update[static_cast<int>(s)] += seconds;
  }

  double likely_step() const { return likely(sum(total), phased(update) + most(update)); }
  /// Forwards and backwards alone.
  double likely_microbatches() const { return likely(sum(total) - sum(once), phased(once)); }

 private:
  /// Streams never overlap to the last: this part of what could be hidden is not.
  static constexpr double kUnhidden = 0.03;

  static double likely(double all, double longest) {
    return longest + kUnhidden * std::max(0.0, all - longest);
  }
  static double sum(const Streams& s) { return std::accumulate(s.begin(), s.end(), 0.0); }
  static double most(const Streams& s) { return *std::max_element(s.begin(), s.end()); }

  void add(Stream s, double seconds, Streams& part) {
    total[static_cast<int>(s)] += seconds;
    part[static_cast<int>(s)] += seconds;
  }

  /// The busiest stream of forward and that of backward, one after the other.
  double phased(const Streams& without) const {
    Streams early{}, late{};
    for (int stream = 0; stream < kStreamCount; ++stream) {
      early[stream] = forward[stream];
      late[stream] = total[stream] - without[stream] - forward[stream];
    }
    const int compute = static_cast<int>(Stream::compute);
    early[compute] += waited_forward;
    late[compute] += waited - waited_forward;
    return most(early) + most(late);
  }
};

}  // namespace longspan
