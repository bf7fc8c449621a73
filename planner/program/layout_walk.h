// The walk that lays a program out, op by op: memory for the buffers, and what every op waits for.
// Internal to planner/program; layout.h says what comes of it.
//
// The ops may come from a list or straight from lowering. What the walk holds is as large as what
// is alive at once: state goes with the buffer, and the next one takes its place.
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
  /// `program` must outlive this object. Of the list nothing is read; shapes and buffers must be
  /// there when their ops come.
  explicit LayoutWalk(const Program& program);

  /// What an op waits for, and its place in its stream's queue.
  struct Step {
    int32_t ordinal = 0;
    uint32_t wait_set = 0;
    Waits waits = kNoWaits;
  };
  /// The next op. Buffers it is the first to touch are given memory.
  Step run(const Op& op);
  /// The end of a buffer's lifetime; its id may then be another's.
  void end(BufferId id);

  bool is_alive(BufferId id) const {
    return static_cast<size_t>(id) < state_of_.size() && state_of_[id] >= 0;
  }
  /// Bytes from the start of what does not persist in its tier. REQUIRES: it is alive.
  int64_t offset(BufferId id) const { return states_[state_of_[id]].offset; }
  const ArenaAllocator& allocator(Tier tier) const { return allocators_[static_cast<int>(tier)]; }
  int32_t ordinal(Stream stream) const { return ordinals_[static_cast<int>(stream)]; }
  /// Bytes of buffers that do not persist.
  int64_t arena_bytes(int tier) const { return allocators_[tier].top(); }
  int64_t most_live_bytes(int tier) const { return most_live_[tier]; }

 private:
  // The state of a live buffer. Ops work on some of the chunks of resident keys and values, and
  // those that work on others need not wait.
  struct State {
    History whole;
    int32_t chunks = -1;  // index into chunks_, of those that have histories by chunk
    int64_t offset = 0;
  };
  struct Range {
    int64_t first, count;
  };

  State& begin(BufferId id);
  Range touched(const Op& op, const State& state) const;

  const Program& program_;
  std::array<int64_t, kTensorCount> padded_{};  // bytes of a unit
  std::array<ArenaAllocator, kTierCount> allocators_;
  std::array<int64_t, kTierCount> live_{}, most_live_{};
  std::array<Waits, kStreamCount> known_;  // what each stream has waited for already
  std::array<int32_t, kStreamCount> ordinals_{};
  std::vector<int32_t> state_of_;  // per buffer, -1: not alive
  std::vector<State> states_;
  std::vector<int32_t> free_states_;
  std::vector<ChunkHistory> chunks_;
  std::vector<int32_t> free_chunks_;
};

}  // namespace longspan
