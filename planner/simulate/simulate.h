// Discrete-event simulation of a step program: the first of its two readers.
//
// Every stream runs its ops in order; an op starts when its stream is free and the ops it waits for
// are done. Ops that run at the same time slow each other down by the interference table, so an
// op's progress is a rate that changes whenever another op starts or ends.
#pragma once

#include <array>
#include <vector>

#include "planner/cost/cost_model.h"
#include "planner/program/layout.h"
#include "planner/program/outline.h"
#include "planner/simulate/timeline.h"

namespace longspan {

/// The predicted timeline. `durations` are seconds per program shape, alone. With `keep_spans` off,
/// spans stay empty. Throws Error(failed) if the program cannot make progress (a bug in it).
Timeline simulate(const Program& program, const Layout& layout,
                  const std::vector<double>& durations, const Interference& interference,
                  bool keep_spans = true);

/// The same for any queues: `durations` are indexed by Queued::shape, spans by Queued::op, which
/// counts from 0 over all queues. Peak bytes stay 0, as the arenas are not known.
Timeline simulate(const Queues& queues, const std::vector<double>& durations,
                  const Interference& interference, bool keep_spans = true);

/// The seconds of an outline's step.
struct StepSeconds {
  double step = 0;
  double forward = 0;  // until its first backward begins to compute
  /// Busy seconds of every stream: until then, and in the whole step.
  std::array<double, kStreamCount> forward_busy{}, busy{};
};
/// The same as simulate() of the program that it outlines. Every repetition that the outline leaves
/// out takes as long as the one that it has.
StepSeconds simulate(const Outline& outline, const std::vector<double>& durations,
                     const Interference& interference);

}  // namespace longspan
