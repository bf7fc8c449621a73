// The allocator that lays out the arena of one tier ahead of time. Internal to planner/program.
//
// It hands out offsets, grows as needed, and remembers for every free fragment which ops last
// touched it, so that the next buffer there knows what to wait for. An exact fit is taken
// oldest first: in a loop, equal buffers then rotate through their slots instead of reusing the
// one just freed, which is what lets copies run ahead.
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
  /// Where there are more free fragments than `indexed`, an index by size is kept. It changes
  /// nothing but the time that looking for a fragment takes. REQUIRES: indexed >= 64.
  explicit ArenaAllocator(size_t indexed = 256) : indexed_(indexed) {}

  /// Offset of `bytes` (a multiple of kArenaAlignment, > 0); `history` is merged with the last
  /// accesses of the memory handed out. Who asks for sizes alone gives no history, neither here nor
  /// to free().
  int64_t allocate(int64_t bytes, Waits* history);
  /// REQUIRES: what allocate() gave out, whole or in parts, and not free yet.
  void free(int64_t offset, int64_t bytes, const Waits* history);
  int64_t top() const { return top_; }  // bytes ever needed
  /// Appends all that decides where memory to come will lie: the fragments, from the oldest on.
  void append_state(std::vector<int64_t>& state) const;
  /// The same for equal states, and nearly never for others.
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
  // The index of the first fragment at `offset` or beyond.
  size_t fragment_at(int64_t offset) const;
  void index_or_not();
  void coalesce();
  void coalesce_at(size_t fragment);
  // Makes `next`, which follows `fragment` in memory, part of it; `next` stays in the lists.
  void absorb(size_t fragment, size_t next);

  // The free fragments by offset, not overlapping: an array for each figure, as looking for a size
  // is the hottest loop of a layout.
  std::vector<int64_t> offsets_;
  std::vector<int64_t> sizes_;    // bytes
  std::vector<int64_t> freed_;    // when: smaller is older, no two are equal
  std::vector<Waits> histories_;  // where they are given, else empty
  std::set<Sized> by_size_;       // all fragments; empty where there is no index
  size_t indexed_;
  int64_t top_ = 0;
  int64_t clock_ = 0;
  bool apart_ = true;  // no two fragments are neighbours
};

}  // namespace longspan
