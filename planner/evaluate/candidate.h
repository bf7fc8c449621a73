// One plan that a search may choose, and how good it is. Plain values.
#pragma once

#include <array>
#include <cstdint>

#include "planner/evaluate/demand.h"
#include "planner/strategy/strategy.h"

namespace longspan {

using TierBytes = std::array<int64_t, kTierCount>;

struct Candidate {
  Strategy strategy;
  int64_t sequence = 0;      ///< tokens, as planned: padded where the asked length divides badly
  int64_t microbatches = 1;  ///< per optimizer step on each data replica
  bool operator==(const Candidate&) const = default;
};

struct Score {
  double overflow = 0;      ///< how far beyond the capacities, relative and summed; 0: it fits
  double step_seconds = 0;  ///< of an optimizer step
  double seconds = 0;       ///< per sequence
  TierBytes bytes{};        ///< per tier: arenas, or live bytes by sampled simulation
  bool sampled = false;     ///< by sampled simulation, from some of its chunks: time may be far off
};

/// Sequences of one optimizer step.
inline int64_t sequences_of_step(const Candidate& c) {
  return c.microbatches * c.strategy.parallel.data;
}

}  // namespace longspan
