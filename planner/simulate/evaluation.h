// The time and memory of a step. A plain value.
#pragma once

#include <array>
#include <cstdint>

#include "planner/program/program.h"

namespace longspan {

struct Evaluation {
  double step_seconds = 0;
  std::array<int64_t, kTierCount> peak_bytes{};
  double forward_seconds = 0;  // until the first compute op of the first backward
  /// Busy seconds of every stream: in forward_seconds, and in the whole step.
  std::array<double, kStreamCount> forward_busy{}, busy_seconds{};
  /// The program was evaluated by its period (by_period.h); in a sampled simulation: only some of
  /// its chunks were sampled.
  bool extrapolated = false;
};

}  // namespace longspan
