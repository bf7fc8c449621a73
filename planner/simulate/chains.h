// A program's queues with fewer entries: ops of a stream that run one right after the other,
// whatever their durations, as one.
//
// An op that waits for nothing starts when the op before it ends. Where no op waits for that end
// either, the two are one to a simulation, as long as the sum of their durations. Streams that meet
// rarely come down to a few such chains.
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
  /// The length of each as numbers of ops by shape: (shape, count).
  std::vector<std::vector<std::pair<int32_t, int32_t>>> sums;
};

/// The chains of `queues`. `apart(before, after)`: these neighbours on a stream (indices of ops)
/// must not be one, as the caller wants to know when `after` starts.
Chains chains_of(const Queues& queues, const std::function<bool(int32_t, int32_t)>& apart);

/// Seconds per entry of `chains.sums`, of those per shape.
std::vector<double> durations_of(const Chains& chains, const std::vector<double>& of_shapes);

}  // namespace longspan
