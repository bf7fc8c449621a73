// Discrete-event simulation of a step program.
//
// Every stream runs its ops in order; an op starts when its stream is free and the ops it waits for
// are done. Concurrent ops slow each other down by the interference table, so an op's rate changes
// whenever another op starts or ends.
#pragma once

#include <array>
#include <vector>

#include "planner/cost/cost_model.h"
#include "planner/program/layout.h"
#include "planner/program/outline.h"
#include "planner/simulate/timeline.h"

namespace longspan {

/// The predicted timeline. `durations`: seconds per program shape, running alone. Without
/// `keep_spans` spans stay empty. Throws Error(failed) if the program cannot make progress, a bug
/// in it.
Timeline simulate(const Program& program, const Layout& layout,
                  const std::vector<double>& durations, const Interference& interference,
                  bool keep_spans = true);

/// The same for any queues: `durations` are indexed by Queued::shape, spans by Queued::op, which
/// counts from 0 over all queues. Peak bytes stay 0.
Timeline simulate(const Queues& queues, const std::vector<double>& durations,
                  const Interference& interference, bool keep_spans = true);

/// The seconds of an outline's step.
struct StepSeconds {
  double step = 0;
  double forward = 0;  // until the first compute op of the first backward
  /// Busy seconds of every stream: in `forward`, and in the whole step.
  std::array<double, kStreamCount> forward_busy{}, busy{};
};
/// Simulates the program of an outline. Left-out repetitions take as long as the one in the
/// outline.
StepSeconds simulate(const Outline& outline, const std::vector<double>& durations,
                     const Interference& interference);

}  // namespace longspan
