// A plan that a search considers, and its score. Plain values.
#pragma once

#include <array>
#include <cstdint>

#include "planner/evaluate/demand.h"
#include "planner/strategy/strategy.h"

namespace longspan {

using TierBytes = std::array<int64_t, kTierCount>;

struct Candidate {
  Strategy strategy;
  int64_t sequence = 0;      ///< tokens of a microbatch, padding included
  int64_t microbatches = 1;  ///< per optimizer step on each data replica
  bool operator==(const Candidate&) const = default;
};

struct Score {
  double overflow = 0;      ///< relative excess over the capacities, summed over tiers; 0: it fits
  double step_seconds = 0;  ///< of an optimizer step
  double seconds = 0;       ///< per microbatch
  TierBytes bytes{};        ///< per tier: arenas, or live bytes by sampled simulation
  bool sampled = false;     ///< sampled with fewer chunks: the time may be far off
};

/// Microbatches of one optimizer step, on all replicas.
inline int64_t micro_batches_of_step(const Candidate& c) {
  return c.microbatches * c.strategy.parallel.data;
}

}  // namespace longspan
