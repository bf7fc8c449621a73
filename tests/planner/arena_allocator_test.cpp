// The allocator hands out what its rules say, however many fragments there are; the index by size
// changes nothing.
#include "planner/program/arena_allocator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace longspan {
namespace {

struct Held {
  int64_t offset, bytes;
};

// The rules of arena_allocator.h, on a plain list of fragments by offset.
class PlainAllocator {
 public:
  int64_t allocate(int64_t bytes, Waits& history) {
    const auto oldest = [&](const Fragment& a, const Fragment& b) {
      return (a.bytes == bytes) != (b.bytes == bytes) ? a.bytes == bytes : a.freed < b.freed;
    };
    const auto equal = std::min_element(free_.begin(), free_.end(), oldest);
    if (equal != free_.end() && equal->bytes == bytes) {
      return take(static_cast<size_t>(equal - free_.begin()), bytes, history);
    }
    size_t best = free_.size();
    for (size_t i = 0; i < free_.size(); ++i) {
      const bool begins = i == 0 || free_[i - 1].end() != free_[i].offset;
      if (!begins || run_at(i) < bytes) continue;
      if (best == free_.size() || run_at(i) < run_at(best)) best = i;
    }
    if (best < free_.size()) return take(best, bytes, history);
    size_t last = free_.size();
    int64_t offset = top_;
    while (last > 0 && free_[last - 1].end() == offset) offset = free_[--last].offset;
    take(last, top_ - offset, history);
    top_ = offset + bytes;
    return offset;
  }
  void free(int64_t offset, int64_t bytes, const Waits& history) {
    const auto behind = [&](const Fragment& f) { return f.offset > offset; };
    free_.insert(std::find_if(free_.begin(), free_.end(), behind),
                 {offset, bytes, clock_++, history});
    if (free_.size() <= 64) return;
    for (size_t i = free_.size() - 1; i-- > 0;) {
      Fragment& f = free_[i];
      const Fragment& next = free_[i + 1];
      if (f.end() != next.offset) continue;
      f.bytes += next.bytes;
      f.freed = std::max(f.freed, next.freed);
      merge(f.history, next.history);
      free_.erase(free_.begin() + static_cast<int64_t>(i) + 1);
    }
  }
  int64_t top() const { return top_; }
  std::vector<int64_t> state() const {
    std::vector<Fragment> by_age = free_;
    std::sort(by_age.begin(), by_age.end(),
              [](const Fragment& a, const Fragment& b) { return a.freed < b.freed; });
    std::vector<int64_t> state = {top_};
    for (const Fragment& f : by_age) state.insert(state.end(), {f.offset, f.bytes});
    return state;
  }

 private:
  int64_t run_at(size_t i) const {
    int64_t run = free_[i].bytes;
    for (; i + 1 < free_.size() && free_[i].end() == free_[i + 1].offset; ++i) {
      run += free_[i + 1].bytes;
    }
    return run;
  }
  int64_t take(size_t i, int64_t bytes, Waits& history) {
    const int64_t offset = i < free_.size() ? free_[i].offset : top_;
    while (bytes > 0) {
      Fragment& f = free_[i];
      merge(history, f.history);
      const int64_t part = std::min(bytes, f.bytes);
      f.offset += part;
      f.bytes -= part;
      bytes -= part;
      if (f.bytes == 0) free_.erase(free_.begin() + static_cast<int64_t>(i));
    }
    return offset;
  }

  std::vector<Fragment> free_;  // by offset
  int64_t top_ = 0, clock_ = 0;
};

}  // namespace

TEST_CASE("allocations follow the rules, with and without an index by size") {
  for (const bool with_histories : {false, true}) {
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      INFO("seed " << seed);
      std::mt19937 random(seed);
      const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
      PlainAllocator plain;
      ArenaAllocator listed(SIZE_MAX), indexed(64);
      std::vector<Held> held;
      size_t most_free = 0;
      // Sizes are few, as for tensors, or many; the number of live buffers grows and shrinks in
      // turn.
      const size_t sizes = seed % 2 == 0 ? 7 : 200;
      for (int step = 0; step < 6000; ++step) {
        const bool grows = step / 1500 % 2 == 0;
        if (held.empty() || below(10) < (grows ? 8U : 3U)) {
          const auto bytes = static_cast<int64_t>(1 + below(sizes)) * kArenaAlignment;
          Waits a = kNoWaits, b = kNoWaits, c = kNoWaits;
          const int64_t offset = plain.allocate(bytes, a);
          REQUIRE(listed.allocate(bytes, with_histories ? &b : nullptr) == offset);
          REQUIRE(indexed.allocate(bytes, with_histories ? &c : nullptr) == offset);
          REQUIRE(b == (with_histories ? a : kNoWaits));
          REQUIRE(c == b);
          held.push_back({offset, bytes});
        } else {
          std::swap(held[below(held.size())], held.back());
          const Held last = held.back();
          held.pop_back();
          Waits waits = kNoWaits;
          waits[below(kStreamCount)] = step;
          plain.free(last.offset, last.bytes, waits);
          listed.free(last.offset, last.bytes, with_histories ? &waits : nullptr);
          indexed.free(last.offset, last.bytes, with_histories ? &waits : nullptr);
        }
        REQUIRE(listed.top() == plain.top());
        REQUIRE(indexed.top() == plain.top());
        const std::vector<int64_t> state = plain.state();
        std::vector<int64_t> other, another;
        listed.append_state(other);
        indexed.append_state(another);
        REQUIRE(other == state);
        REQUIRE(another == state);
        REQUIRE(listed.state_key() == indexed.state_key());
        most_free = std::max(most_free, state.size() / 2);
      }
      CHECK(most_free > 128);
    }
  }
}

}  // namespace longspan
