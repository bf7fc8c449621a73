// A program's queues with fewer entries: ops of a stream that run one right after the other,
// whatever their durations, become one entry, a chain.
//
// An op that waits for nothing starts when the op before it ends. If no op waits for that end
// either, a simulation can take the two as one op with the sum of their durations. Streams that
// seldom wait for each other come down to a few chains.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "planner/program/layout.h"

namespace longspan {

struct Chains {
  Queues queues;  // Queued::op is a chain's number, Queued::shape its index in sums
  std::vector<int32_t> first_ops;  // per chain, the op it begins with
  /// The distinct chains, as numbers of ops by shape: (shape, count).
  std::vector<std::vector<std::pair<int32_t, int32_t>>> sums;
};

/// The chains of `queues`. `apart(before, after)`: whether two consecutive ops of a stream (indices
/// of ops) stay apart, because the caller wants to know when `after` starts.
Chains chains_of(const Queues& queues, const std::function<bool(int32_t, int32_t)>& apart);

/// Seconds of each entry of `chains.sums`, from the seconds of each shape.
std::vector<double> durations_of(const Chains& chains, const std::vector<double>& of_shapes);

}  // namespace longspan
