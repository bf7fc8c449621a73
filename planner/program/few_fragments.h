// The free fragments of an arena while they are few, which is nearly always. Internal to
// planner/program; arena_allocator.h describes the rules.
//
// Most of a layout's time goes to buffers that take the place of an equal one, so that case moves
// no memory: a fragment stays in its slot, whatever its offset. Their order is only made if no
// fragment has the size that is asked for.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "planner/program/fragment.h"

namespace longspan {

class FewFragments {
 public:
  static constexpr int kMost = 64;

  int size() const { return std::popcount(used_); }
  /// REQUIRES: size() < kMost.
  void add(const Fragment& fragment) {
    const int slot = std::countr_one(used_);
    assert(slot < kMost);
    used_ |= bit(slot);
    offsets_[slot] = fragment.offset;
    sizes_[slot] = fragment.bytes;
    ages_[slot] = fragment.freed << kSlotBits | slot;
    histories_[slot] = fragment.history;
  }
  /// Takes the oldest fragment of exactly this size. Returns its offset, or -1 if there is none.
  /// Its history is merged into `history`, which is null, here and below, if none is asked for.
  int64_t take_equal(int64_t bytes, Waits* history) {
    const int64_t oldest = oldest_of(bytes);
    if (oldest == INT64_MAX) return -1;
    const int slot = static_cast<int>(oldest & (kMost - 1));
    remove(slot, history);
    return offsets_[slot];
  }
  /// Takes the first bytes of the smallest run of adjacent fragments that is large enough; of equal
  /// ones, of the lowest. Returns -1 if there is none.
  int64_t take_from_run(int64_t bytes, Waits* history);
  /// Takes the run that ends at `end`. Returns its offset, or `end` if there is none.
  int64_t take_run_before(int64_t end, Waits* history);

  /// The fragment at a place in the order of offsets. Call sort() first.
  Fragment at(int place) const { return fragment(order_[place]); }
  void sort();
  /// Appends offsets and sizes, from the oldest on.
  void append_by_age(std::vector<int64_t>& state) const;
  /// A hash of them, which adds up key_of() of every fragment.
  uint64_t key() const {
    uint64_t sum = 0;
    for (uint64_t used = used_; used != 0; used &= used - 1) {
      const int slot = std::countr_zero(used);
      sum += key_of(offsets_[slot], sizes_[slot]);
    }
    return sum;
  }
  void clear() { used_ = listed_ = 0, ordered_ = 0, sizes_.fill(0); }

 private:
  static constexpr int kSlotBits = 6;
  static constexpr int kLanes = 4;  // of a vector register
  static_assert(kMost == 1 << kSlotBits);
  using Lanes [[gnu::vector_size(kLanes * sizeof(int64_t))]] = int64_t;

  static uint64_t bit(int slot) { return uint64_t{1} << slot; }
  static Lanes load(const int64_t* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
  }
  // The least ages_[i] of those with sizes_[i] == bytes; INT64_MAX: none. Without branches that
  // would be mispredicted in most calls.
  int64_t oldest_of(int64_t bytes) const {
    const auto older = [&](Lanes than, int slot) {
      const Lanes age = load(&ages_[slot]) | ((load(&sizes_[slot]) != bytes) & INT64_MAX);
      return age < than ? age : than;
    };
    Lanes least = Lanes{} + INT64_MAX, other = least;
    for (int slot = 0, n = static_cast<int>(std::bit_width(used_)); slot < n; slot += 2 * kLanes) {
      least = older(least, slot);
      other = older(other, slot + kLanes);
    }
    least = least < other ? least : other;
    int64_t oldest = least[0];
    for (int lane = 1; lane < kLanes; ++lane) oldest = std::min<int64_t>(oldest, least[lane]);
    return oldest;
  }
  void remove(int slot, Waits* history) {
    if (history != nullptr) merge(*history, histories_[slot]);
    used_ &= ~bit(slot);
    listed_ &= ~bit(slot);
    sizes_[slot] = 0;
  }
  Fragment fragment(int slot) const {
    return {offsets_[slot], sizes_[slot], ages_[slot] >> kSlotBits, histories_[slot]};
  }
  int64_t end(int slot) const { return offsets_[slot] + sizes_[slot]; }

  // By slot. An unused slot has size 0, and any age.
  std::array<int64_t, kMost> offsets_{}, sizes_{};
  std::array<int64_t, kMost> ages_{};  // time of release, and the slot in the last bits
  std::array<Waits, kMost> histories_{};
  uint64_t used_ = 0;    // bit: a slot has a fragment
  uint64_t listed_ = 0;  // bit: it has the same fragment as when it was entered in order_
  std::array<uint8_t, kMost> order_{};  // slots by offset, some not listed any more
  int ordered_ = 0;                     // entries of order_
};

}  // namespace longspan
