// The walk that lays out a program op by op: allocates buffers, and finds the ops that each op
// waits for. Internal to planner/program; layout.h describes the result.
//
// The ops come from a list or directly from lowering. The walk holds state of live buffers only.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/program/arena_allocator.h"
#include "planner/program/chunk_history.h"
#include "planner/program/layout.h"

namespace longspan {

class LayoutWalk {
 public:
  /// `program` must outlive this object. The walk does not read program.ops. An op's shape and
  /// buffers must be in the program before run(op).
  explicit LayoutWalk(const Program& program);

  /// The ops that an op waits for, and its place in its stream's queue.
  struct Step {
    int32_t ordinal = 0;
    uint32_t wait_set = 0;
    Waits waits = kNoWaits;
  };
  /// Processes the next op. Allocates the buffers that it touches first.
  Step run(const Op& op);
  /// Ends a buffer's lifetime; its id may then be reused.
  void end(BufferId id);

  bool is_alive(BufferId id) const {
    return static_cast<size_t>(id) < state_of_.size() && state_of_[id] >= 0;
  }
  /// Offset in bytes within the tier's region of buffers that are not persistent. REQUIRES:
  /// is_alive(id).
  int64_t offset(BufferId id) const { return states_[state_of_[id]].offset; }
  const ArenaAllocator& allocator(Tier tier) const { return allocators_[static_cast<int>(tier)]; }
  int32_t ordinal(Stream stream) const { return ordinals_[static_cast<int>(stream)]; }
  /// Size in bytes of that region.
  int64_t arena_bytes(int tier) const { return allocators_[tier].top(); }
  /// The largest sum of live buffers so far, without fragmentation.
  int64_t most_live_bytes(int tier) const { return most_live_[tier]; }

 private:
  // The state of a live buffer. Keys and values of several chunks have a history per chunk, as ops
  // on different chunks need not wait for each other.
  struct State {
    History whole;
    int32_t chunks = -1;  // index into chunks_; -1: no histories by chunk
    int32_t first_chunk = 0;
    int64_t offset = 0;
  };
  struct Range {
    int64_t first, count;
  };

  State& begin(BufferId id);
  Range touched(const Op& op, const State& state) const;

  const Program& program_;
  PaddedBytes padded_;
  std::array<ArenaAllocator, kTierCount> allocators_;
  std::array<int64_t, kTierCount> live_{}, most_live_{};
  std::array<Waits, kStreamCount> known_;  // the ops that each stream has already waited for
  std::array<int32_t, kStreamCount> ordinals_{};
  std::vector<int32_t> state_of_;  // per buffer, -1: not alive
  std::vector<State> states_;
  std::vector<int32_t> free_states_;
  std::vector<ChunkHistory> chunks_;
  std::vector<int32_t> free_chunks_;
};

}  // namespace longspan
