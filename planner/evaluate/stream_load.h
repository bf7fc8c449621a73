// Busy time of every stream in a step. Internal to the bounds.
#pragma once

#include <array>

#include "planner/program/program.h"

namespace longspan {

/// Busy seconds of every stream, accumulated op by op.
struct StreamLoad {
  using Streams = std::array<double, kStreamCount>;
  /// `total`, and parts of it: before the backward; once per step rather than per microbatch; and
  /// the part of `once` after the norm of the gradients.
  Streams total{}, forward{}, once{}, update{};
  /// Seconds that every microbatch after the first adds; `total` includes all of them.
  Streams repeated{};
  /// Seconds that compute waits for exchanges.
  double waited = 0, waited_forward = 0;
  /// Seconds of a microbatch's loss and embedding on the compute stream.
  double loss = 0, embed_forward = 0, embed_backward = 0;

  double& operator[](Stream s) { return total[static_cast<int>(s)]; }
  void in_forward(Stream s, double seconds) { add(s, seconds, forward); }
  void again(Stream s, double seconds, double times) {
    total[static_cast<int>(s)] += times * seconds;
    repeated[static_cast<int>(s)] += seconds;
  }
  void once_a_step(Stream s, double seconds) { add(s, seconds, once); }
  void after_norm(Stream s, double seconds) {
    once_a_step(s, seconds);
    update[static_cast<int>(s)] += seconds;
  }

 private:
  void add(Stream s, double seconds, Streams& part) {
    total[static_cast<int>(s)] += seconds;
    part[static_cast<int>(s)] += seconds;
  }
};

}  // namespace longspan
