#include "engine/cpu/thread_pool.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/error.h"

using longspan::ThreadPool;

TEST_CASE("every piece runs exactly once, on a thread of the pool") {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    REQUIRE(pool.threads() == threads);
    for (const int64_t pieces : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(pieces);
      std::atomic<bool> known_thread = true;
      pool.run(pieces, [&](int64_t piece, int thread) {
        ++runs[piece];
        if (thread < 0 || thread >= threads) known_thread = false;
      });
      for (const auto& count : runs) REQUIRE(count == 1);
      REQUIRE(known_thread);
    }
  }
}

TEST_CASE("two threads of the pool work at the same time") {
  ThreadPool pool(2);
  std::atomic<int> arrived = 0;
  // Each piece waits for the other: with one thread this would never end.
  pool.run(2, [&](int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  REQUIRE(arrived == 2);
}

TEST_CASE("a piece may wait for a lower one") {
  ThreadPool pool(4);
  std::vector<std::atomic<bool>> begun(500);
  std::atomic<int> done = 0;
  pool.run(500, [&](int64_t piece, int) {
    begun[piece] = true;
    for (int64_t i = 0; i < piece; ++i) {  // never ends if pieces are not begun in order
      while (!begun[i]) std::this_thread::yield();
    }
    ++done;
  });
  REQUIRE(done == 500);
}

TEST_CASE("an exception of a body reaches the caller, and the pool works on") {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int repeat = 0; repeat < 50; ++repeat) {
      const auto fail = [](int64_t piece, int) {
        if (piece == 5) throw longspan::failed("piece 5");
      };
      REQUIRE_THROWS_AS(pool.run(100, fail), longspan::Error);
      std::atomic<int64_t> sum = 0;
      pool.run(10, [&](int64_t piece, int) { sum += piece; });
      REQUIRE(sum == 45);
    }
  }
}

TEST_CASE("many short loops end") {
  ThreadPool pool(3);
  int64_t total = 0;
  for (int i = 0; i < 20000; ++i) {
    std::atomic<int64_t> sum = 0;
    pool.run(4, [&](int64_t piece, int) { sum += piece; });
    total += sum;
  }
  REQUIRE(total == 20000 * 6);
}

TEST_CASE("a pool needs a thread") { REQUIRE_THROWS_AS(ThreadPool(0), longspan::Error); }
