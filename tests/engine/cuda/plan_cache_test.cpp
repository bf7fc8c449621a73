#include "engine/cuda/plan_cache.h"

#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>

namespace longspan::cuda {

TEST_CASE("a plan is built once a key, and kept where it is", "[cuda]") {
  PlanCache<int, std::string> cache;
  const std::string& first = cache.get(1, [] { return std::string("one"); });
  for (int key = 2; key < 100; ++key) {
    cache.get(key, [&] { return std::to_string(key); });
  }
  const std::string& again = cache.get(1, []() -> std::string { throw std::logic_error("again"); });
  CHECK(&again == &first);
  CHECK(first == "one");
  CHECK(cache.built() == 99);
  cache.set(1, "uno");
  CHECK(first == "uno");
}

TEST_CASE("what cannot be built is not kept, and is tried again", "[cuda]") {
  PlanCache<int, int> cache;
  CHECK_THROWS(cache.get(7, []() -> int { throw std::runtime_error("no"); }));
  CHECK(cache.plans().empty());
  CHECK(cache.get(7, [] { return 49; }) == 49);
  CHECK(cache.built() == 1);
}

}  // namespace longspan::cuda
