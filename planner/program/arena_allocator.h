// The allocator that lays out the arena of one tier ahead of the step. Internal to planner/program.
//
// It returns offsets, grows as needed, and records for every free fragment which ops last touched
// it, so that the next buffer there waits for them.
//
// A buffer takes the oldest free fragment of exactly its size: in a loop, equal buffers then rotate
// through their slots instead of reusing the one just freed, which lets copies run ahead. Else it
// takes the start of the smallest run of adjacent fragments that is large enough; else the arena
// grows, from the free run that touches its end. Fragments stay apart, with their own histories,
// while they are few; of many, adjacent ones are merged.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/program/few_fragments.h"
#include "planner/program/layout.h"
#include "planner/program/many_fragments.h"

namespace longspan {

class ArenaAllocator {
 public:
  /// With more free fragments than `indexed`, an index by size is kept. It affects only the speed
  /// of the search for a fragment.
  explicit ArenaAllocator(size_t indexed = 256) : many_(indexed) {}

  /// Returns the offset of `bytes` (a multiple of kArenaAlignment, > 0). `history` is merged with
  /// the last accesses of that memory; it is null, here and in free(), if only sizes are needed.
  int64_t allocate(int64_t bytes, Waits* history);
  /// REQUIRES: memory from allocate(), whole or in parts, not freed yet.
  void free(int64_t offset, int64_t bytes, const Waits* history);
  int64_t top() const { return top_; }  // bytes: the size of the arena
  /// Appends all that determines later allocations: the fragments, from the oldest on.
  void append_state(std::vector<int64_t>& state) const;
  /// A hash of append_state()'s state.
  uint64_t state_key() const;

 private:
  FewFragments few_;    // all, unless is_many_
  ManyFragments many_;  // all, if is_many_
  bool is_many_ = false;
  int64_t top_ = 0;
  int64_t clock_ = 0;
};

}  // namespace longspan
