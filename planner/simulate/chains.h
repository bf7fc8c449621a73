// A program's queues with fewer entries: ops of a stream that run back to back, for any durations,
// are merged into one entry, a chain.
//
// An op that waits for nothing starts when the op before it ends. If no op waits for that end
// either, a simulation can treat the two as one op with the sum of their durations. Streams that
// seldom wait for each other are reduced to a few chains.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "planner/program/layout.h"

namespace longspan {

struct Chains {
  Queues queues;  // Queued::op is a chain's number, Queued::shape its index in sums
  std::vector<int32_t> first_ops;  // per chain, its first op
  /// The distinct chains, as lists of (shape, number of ops).
  std::vector<std::vector<std::pair<int32_t, int32_t>>> sums;
};

/// The chains of `queues`. `apart(before, after)`: whether two consecutive ops of a stream (indices
/// of ops) are not merged, because the caller needs the start of `after`.
Chains chains_of(const Queues& queues, const std::function<bool(int32_t, int32_t)>& apart);

/// Seconds of each entry of `chains.sums`, from the seconds of each shape.
std::vector<double> durations_of(const Chains& chains, const std::vector<double>& of_shapes);

}  // namespace longspan
