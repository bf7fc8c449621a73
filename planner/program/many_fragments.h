// The free fragments of an arena while they are many. Internal to planner/program;
// arena_allocator.h describes the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "planner/program/fragment.h"

namespace longspan {

/// The fragments in the order of their offsets. Adjacent ones are merged, with their histories.
class ManyFragments {
 public:
  /// With more fragments than `indexed`, an index by size is kept. It affects only the speed of the
  /// search for a fragment.
  explicit ManyFragments(size_t indexed) : indexed_(indexed) {}

  size_t size() const { return offsets_.size(); }
  Fragment at(size_t i) const { return {offsets_[i], sizes_[i], freed_[i], histories_[i]}; }
  void add(const Fragment& fragment);
  /// The same behind all others. REQUIRES: no index, as after clear().
  void append(const Fragment& fragment);
  /// Takes the first bytes of the oldest fragment of exactly this size, else of the smallest that
  /// is larger; of equal ones, of the lowest. Returns the offset, or -1 if there is none. `history`
  /// is null, here and below, if none is asked for.
  int64_t take(int64_t bytes, Waits* history);
  /// Takes the fragment that ends at `end`. Returns its offset, or `end` if there is none.
  int64_t take_before(int64_t end, Waits* history);
  void clear();
  /// As FewFragments's.
  void append_by_age(std::vector<int64_t>& state) const;
  uint64_t key() const;

 private:
  // A fragment in the index.
  struct Sized {
    int64_t bytes, freed, offset;
    auto operator<=>(const Sized&) const = default;
  };
  Sized sized(size_t i) const { return {sizes_[i], freed_[i], offsets_[i]}; }
  int64_t end(size_t i) const { return offsets_[i] + sizes_[i]; }
  // Returns the index of the first fragment at `offset` or beyond.
  size_t fragment_at(int64_t offset) const;
  // Return the index of the fragment that take() takes, or size().
  size_t fitting(int64_t bytes) const;
  size_t fitting_indexed(int64_t bytes) const;
  // Adds the memory behind a fragment to it.
  void absorb(size_t i, const Fragment& next);
  void merge_with_next(size_t i);
  void erase(size_t i);
  void index_or_not();

  // One array per field, as the search for a size is the hottest loop here.
  std::vector<int64_t> offsets_, sizes_, freed_;
  std::vector<Waits> histories_;
  std::set<Sized> by_size_;  // all fragments; empty without an index
  size_t indexed_;
};

}  // namespace longspan
