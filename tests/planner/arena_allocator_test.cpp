// The index by size changes no offset and no history.
#include "planner/program/arena_allocator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

namespace longspan {
namespace {

struct Held {
  int64_t offset, bytes;
};

}  // namespace

TEST_CASE("an index by size changes nothing that is handed out") {
  for (const bool with_histories : {false, true}) {
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      INFO("seed " << seed);
      std::mt19937 random(seed);
      const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
      ArenaAllocator plain(SIZE_MAX), indexed(64);
      std::vector<Held> held;
      size_t most_free = 0;
      // Sizes are few, as for tensors, or many; the number of live buffers grows and shrinks in
      // turn.
      const size_t sizes = seed % 2 == 0 ? 7 : 200;
      for (int step = 0; step < 6000; ++step) {
        const bool grows = step / 1500 % 2 == 0;
        if (held.empty() || below(10) < (grows ? 8U : 3U)) {
          const auto bytes = static_cast<int64_t>(1 + below(sizes)) * kArenaAlignment;
          Waits a = kNoWaits, b = kNoWaits;
          const int64_t offset = plain.allocate(bytes, with_histories ? &a : nullptr);
          REQUIRE(indexed.allocate(bytes, with_histories ? &b : nullptr) == offset);
          REQUIRE(a == b);
          held.push_back({offset, bytes});
        } else {
          std::swap(held[below(held.size())], held.back());
          const Held last = held.back();
          held.pop_back();
          Waits waits = kNoWaits;
          waits[below(kStreamCount)] = step;
          plain.free(last.offset, last.bytes, with_histories ? &waits : nullptr);
          indexed.free(last.offset, last.bytes, with_histories ? &waits : nullptr);
        }
        REQUIRE(indexed.top() == plain.top());
        std::vector<int64_t> state, other;
        plain.append_state(state);
        indexed.append_state(other);
        REQUIRE(state == other);
        most_free = std::max(most_free, state.size() / 2);
      }
      CHECK(most_free > 128);
    }
  }
}

}  // namespace longspan
