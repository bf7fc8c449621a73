// Device memory beyond the arenas: what a device with its libraries takes, that a plan takes little
// besides its arena, and that all of it is given back.
#include <catch2/catch.hpp>
#include <chrono>

#include "tests/gpu/figures.h"
#include "tests/gpu/long_step.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {

TEST_CASE("a plan takes its arena and gives it back", "[memory]") {
  const int64_t before = device_bytes_taken();
  int64_t overhead = 0;
  {
    const auto device = open_under_test();
    const int64_t with_device = device_bytes_taken();
    figure("device memory taken with a context alone", static_cast<double>(before), "B");
    figure("device memory a device's libraries and scratch take",
           static_cast<double>(with_device - before), "B");
    const ModelSpec model = two_layers();
    for (const int64_t sequence : {8192, 16384}) {
      const int64_t tokens = on_gpu() ? sequence : sequence / 64, chunk = tokens / 8;
      const LongOutcome got = run_long_step(
          {model, chunked_and_offloaded(model, tokens, chunk), tokens, 1, DType::bfloat16, 0},
          *device, base_seed(), 1, false);
      CHECK(got.high_water_bytes == got.predicted_bytes);
      const int64_t arena = got.predicted_bytes[0];
      const auto beyond = static_cast<double>(got.bytes_after - arena - before);
      figure("device memory beyond the arena at " + std::to_string(tokens) + " tokens", beyond,
             "B");
      CHECK(got.bytes_with - got.bytes_before >= arena);
      CHECK(got.bytes_with - got.bytes_before <= arena + (int64_t{4} << 20));
      // Kernels loaded by the first step stay; another plan adds few of its own.
      if (overhead > 0) {
        CHECK(beyond <= static_cast<double>(overhead) + 0.02 * static_cast<double>(arena));
      }
      overhead = static_cast<int64_t>(beyond);
    }
  }
  const int64_t after = device_bytes_taken();
  figure("device memory that stays taken afterwards", static_cast<double>(after - before), "B");
}

TEST_CASE("the time that pinned memory takes to get", "[memory]") {
  const auto device = open_under_test();
  const int64_t bytes = on_gpu() ? int64_t{16} << 30 : int64_t{1} << 20;
  const auto begin = std::chrono::steady_clock::now();
  const auto arena = device->allocate(Tier::host, bytes);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  CHECK(arena->bytes() == bytes);
  figure("pinned memory taken, touched and registered", static_cast<double>(bytes) / took.count(),
         "B/s");
}

}  // namespace longspan::testing
