// What of a program and its layout a prediction needs: the arenas, and the queues in a few bytes an
// op. Made while lowering goes by, without a list of ops or buffers, it takes a fraction of the
// time and a twentieth of the memory of build_program() and lay_out(), and says the same.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/program/layout.h"
#include "planner/program/program.h"

namespace longspan {

/// A stream's queue, packed.
struct PackedQueue {
  std::vector<uint32_t> ops;   // shape << kStreamCount | set of streams waited for
  std::vector<int32_t> waits;  // of each op, per member of its set, ascending: the ordinal there
};
using PackedQueues = std::array<PackedQueue, kStreamCount>;

/// An op's place in the queues.
struct QueuePlace {
  int stream = 0;
  int64_t ordinal = -1;
};

/// Part of a program that comes so often more than it is in the queues: what the compute stream
/// does after its op `from` until its op `to` is done.
struct LeftOut {
  int64_t from = 0, to = 0;  // ordinals
  int64_t times = 0;
};

struct Outline {
  Program program;  // without ops, buffers and releases
  PackedQueues queues;
  QueuePlace first_backward;  // FirstBackward; -1: there is none
  std::array<int64_t, kTierCount> arena_bytes{};
  /// Largest sum of live buffers at any op.
  std::array<int64_t, kTierCount> live_bytes{};
  int64_t ops = 0;
  std::vector<LeftOut> left_out;  // in order
};

/// The outline of what build_program() and lay_out() make. Throws as build_program() does.
Outline outline_of(const StepRequest& request);

/// The same with loops over pairs of chunks left out as far as they repeat what they have done: as
/// far as the memory of the device tells. The arenas of other tiers are then close to the layout's.
Outline outline_without_repeats(const StepRequest& request);

}  // namespace longspan
