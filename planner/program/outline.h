// The part of a program and its layout that a prediction needs: the arenas, and the queues in a few
// bytes per op. Built during lowering, without a list of ops or buffers, it takes a fraction of the
// time and a twentieth of the memory of build_program() and lay_out(), with equal results.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/program/layout.h"
#include "planner/program/program.h"

namespace longspan {

/// A stream's queue, packed.
struct PackedQueue {
  std::vector<uint32_t> ops;   // shape << kStreamCount | set of streams to wait for
  std::vector<int32_t> waits;  // per op and stream of its set, ascending: the ordinal to wait for
};
using PackedQueues = std::array<PackedQueue, kStreamCount>;

/// An op's place in the queues.
struct QueuePlace {
  int stream = 0;
  int64_t ordinal = -1;
};

/// A part of a program that repeats `times` times more than in the queues: from the end of the
/// compute stream's op `from` to the end of its op `to`.
struct LeftOut {
  int64_t from = 0, to = 0;  // ordinals
  int64_t times = 0;
};

struct Outline {
  Program program;  // without ops, buffers and releases
  PackedQueues queues;
  QueuePlace first_backward;  // see FirstBackward; -1: none
  std::array<int64_t, kTierCount> arena_bytes{};
  /// Largest sum of live buffers at any op.
  std::array<int64_t, kTierCount> live_bytes{};
  int64_t ops = 0;
  std::vector<LeftOut> left_out;  // in order
};

/// The outline of build_program() and lay_out(). Throws as build_program() does.
Outline outline_of(const StepRequest& request);

/// The same, without the periodic iterations of loops over pairs of chunks; the period is that of
/// the device's memory. The arenas of other tiers are then only close to the layout's.
Outline outline_without_repeats(const StepRequest& request);

}  // namespace longspan
