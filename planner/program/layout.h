// The layout of a program, derived from its list: the offset of every buffer, and the ops that
// every op waits for.
//
// One walk over the program in order allocates buffers when their lifetime begins and frees them
// when it ends; the arena of a tier is exactly as large as the walk needed. The same walk derives
// the edges between ops: read after write, write after read and write after write, on a buffer and
// on the memory that it takes over from earlier ones.
//
// Streams are queues, so edges are only needed between streams, and the end of op n of a stream
// implies that of all before it. An op's dependencies are at most one ordinal per other stream,
// like an event wait on a GPU.
//
// A Layout is an immutable plain value.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/program/program.h"

namespace longspan {

/// Offsets and arena sizes are multiples of this.
inline constexpr int64_t kArenaAlignment = 256;

/// For each stream, the ordinal of the op on it that must be done first; -1: none.
using Waits = std::array<int32_t, kStreamCount>;

/// One op in its stream's queue.
struct Queued {
  int32_t op = 0;         // index into Program::ops
  int32_t shape = 0;      // a copy, which spares the simulator a lookup
  uint32_t wait_set = 0;  // bit s: waits[s] >= 0
  Waits waits{};
};

/// All streams' queues, in order; the index is the ordinal.
using Queues = std::array<std::vector<Queued>, kStreamCount>;

struct Layout {
  std::vector<int64_t> offsets;  // per buffer, bytes from the start of its tier's arena
  Queues streams;
  std::array<int64_t, kTierCount> arena_bytes{};
  /// Largest sum of live buffers at any op: the arena size of a perfect packing.
  std::array<int64_t, kTierCount> live_bytes{};
};

/// Lays out `program`. REQUIRES: built by build_program.
Layout lay_out(const Program& program);

/// The bytes that buffers take in an arena. A lookup for those of one unit, as programs have
/// millions of buffers.
class PaddedBytes {
 public:
  /// `program` must outlive this object.
  explicit PaddedBytes(const Program& program);
  int64_t of(const Buffer& b) const {
    return b.units == 1 ? of_unit_[static_cast<size_t>(b.kind * kTensorCount) +
                                   static_cast<size_t>(b.tensor)]
                        : of_units(b);
  }

 private:
  int64_t of_units(const Buffer& b) const;

  const Program& program_;
  std::vector<int64_t> of_unit_;  // by kind of layers and tensor
};

struct Arenas {
  std::array<int64_t, kTierCount> bytes{};
  /// The tensor with most bytes of a tier at the first op at its peak; Tensor::count if the tier is
  /// empty.
  std::array<Tensor, kTierCount> largest{Tensor::count, Tensor::count, Tensor::count};
  int64_t ops = 0;  // of the program
};
/// Whether no tier has more bytes than its limit.
bool fits_within(const std::array<int64_t, kTierCount>& bytes,
                 const std::array<int64_t, kTierCount>& limits);

/// The arenas of lay_out(build_program(request)), in a fraction of the time, as neither the list
/// nor its edges are built. With limits it stops at the first buffer that exceeds them; bytes then
/// exceed the limits by an unspecified amount. Throws as build_program() does.
Arenas arenas_of(const StepRequest& request,
                 const std::array<int64_t, kTierCount>* limits = nullptr);
Arenas arenas_of(const StepRequest& request, const RankOfPipeline& rank);

/// The same, without the periodic iterations of loops over pairs of chunks. The device's arena is
/// exact, those of other tiers are close; `ops` counts the remaining ops.
Arenas arenas_without_repeats(const StepRequest& request);

/// The memory curve: live bytes of each tier while each op runs, in program order.
std::vector<std::array<int64_t, kTierCount>> live_bytes_by_op(const Program& program);

}  // namespace longspan
