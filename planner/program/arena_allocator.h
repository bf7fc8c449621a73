// The allocator that lays out the arena of one tier ahead of the step. Internal to planner/program.
//
// It returns offsets, grows as needed, and records for every free fragment which ops last touched
// it, so that the next buffer there waits for them. Of exact fits the oldest is taken: in a loop,
// equal buffers then rotate through their slots instead of reusing the one just freed, which lets
// copies run ahead.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "planner/program/layout.h"

namespace longspan {

inline constexpr Waits kNoWaits = {-1, -1, -1, -1, -1, -1};

inline void merge(Waits& into, const Waits& from) {
  for (int s = 0; s < kStreamCount; ++s) {
    if (from[s] > into[s]) into[s] = from[s];
  }
}

class ArenaAllocator {
 public:
  /// With more free fragments than `indexed`, an index by size is kept. It affects only the speed
  /// of the search for a fragment. REQUIRES: indexed >= 64.
  explicit ArenaAllocator(size_t indexed = 256) : indexed_(indexed) {}

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
  int64_t end(size_t fragment) const { return offsets_[fragment] + sizes_[fragment]; }
  void inherit(Waits* history, size_t fragment) const {
    if (history != nullptr) merge(*history, histories_[fragment]);
  }
  // A fragment in the index.
  struct Sized {
    int64_t bytes, freed, offset;
    auto operator<=>(const Sized&) const = default;
  };
  Sized sized(size_t fragment) const {
    return {sizes_[fragment], freed_[fragment], offsets_[fragment]};
  }

  void erase(size_t begin, size_t end);
  int64_t allocate_indexed(int64_t bytes, Waits* history);
  // Returns the index of the first fragment at `offset` or beyond.
  size_t fragment_at(int64_t offset) const;
  void index_or_not();
  void coalesce();
  void coalesce_at(size_t fragment);
  // Merges `next`, which follows `fragment` in memory, into it; `next` stays in the lists.
  void absorb(size_t fragment, size_t next);

  // The free fragments by offset, not overlapping. One array per field, as the search for a size is
  // the hottest loop of a layout.
  std::vector<int64_t> offsets_;
  std::vector<int64_t> sizes_;    // bytes
  std::vector<int64_t> freed_;    // time of release: smaller is older, all distinct
  std::vector<Waits> histories_;  // empty if none are given
  std::set<Sized> by_size_;       // all fragments; empty without an index
  size_t indexed_;
  int64_t top_ = 0;
  int64_t clock_ = 0;
  bool apart_ = true;  // no two fragments are adjacent
};

}  // namespace longspan
