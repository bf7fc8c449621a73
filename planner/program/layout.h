// Where every buffer of a program lies, and what every op must wait for: both follow from the list.
//
// Walking the program once in order, buffers are given memory when their lifetime begins and give
// it back when it ends; the arena of a tier is exactly as large as the walk needed. The same walk
// derives the edges between ops: read after write, write after read and write after write on a
// buffer, and on the memory a buffer inherits from those that lay there before.
//
// Streams are queues, so an edge is only needed between streams, and "op n of stream s is done"
// implies all before it on s: an op's dependencies are at most one ordinal per other stream, which
// is what an event wait is on a GPU.
//
// A Layout is a plain value, immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/program/program.h"

namespace longspan {

/// Offsets are multiples of this; so are arena sizes.
inline constexpr int64_t kArenaAlignment = 256;

/// For each stream, the ordinal of the op on it that must be done first; -1: none.
using Waits = std::array<int32_t, kStreamCount>;

/// One op in its stream's queue.
struct Queued {
  int32_t op = 0;         // index into Program::ops
  int32_t shape = 0;      // its shape, here so that the simulator need not look the op up
  uint32_t wait_set = 0;  // bit s: waits[s] >= 0
  Waits waits{};
};

/// All streams' queues, in order; position is the ordinal.
using Queues = std::array<std::vector<Queued>, kStreamCount>;

struct Layout {
  std::vector<int64_t> offsets;  // per buffer, bytes from the start of its tier's arena
  Queues streams;
  std::array<int64_t, kTierCount> arena_bytes{};
  /// Largest sum of live buffers at any op: what a perfect packing would need.
  std::array<int64_t, kTierCount> live_bytes{};
};

/// Lays out `program`. REQUIRES: built by build_program.
Layout lay_out(const Program& program);

struct Arenas {
  std::array<int64_t, kTierCount> bytes{};
  /// What takes most of a tier at the first op at its peak; Tensor::count where it is empty.
  std::array<Tensor, kTierCount> largest{Tensor::count, Tensor::count, Tensor::count};
  int64_t ops = 0;  // of the program
};
/// The arenas of lay_out(build_program(request)), in a fraction of their time: neither the list nor
/// its edges are made. With limits it stops at the first buffer that exceeds them: bytes say then
/// that they do, not by how much. Throws as build_program() does.
Arenas arenas_of(const StepRequest& request,
                 const std::array<int64_t, kTierCount>* limits = nullptr);
Arenas arenas_of(const StepRequest& request, const RankOfPipeline& rank);

/// The same with loops over pairs of chunks left out as far as they repeat what they have done: of
/// the device what it would be, of other tiers close to it; `ops` are those that are left.
Arenas arenas_without_repeats(const StepRequest& request);

/// Bytes live on each tier while each op runs, in program order: the memory curve.
std::vector<std::array<int64_t, kTierCount>> live_bytes_by_op(const Program& program);

}  // namespace longspan
