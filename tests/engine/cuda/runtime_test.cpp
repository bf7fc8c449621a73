// The device that a GPU build opens, on the runtime of the tests.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "engine/cuda/open_device.h"
#include "tests/engine/cuda/host_runtime.h"

namespace longspan::testing {

TEST_CASE("a device explains its memory, and gives all of it back", "[cuda]") {
  const int64_t before = runtime_allocations();
  {
    const auto device = cuda::open_device(0);
    CHECK(device->name() == "a device of the tests");
    CHECK_THAT(device->facts().software, Catch::Contains("CUDA 13.0"));
    int64_t explained = 0;
    for (const cuda::MemoryTerm& term : device->opening()) explained += term.bytes;
    CHECK(explained == device->memory().used_bytes);
    const auto arena = device->allocate(Tier::device, 1 << 20);
    const auto pinned = device->allocate(Tier::host, 1 << 20);
    CHECK(device->memory().used_bytes == explained + (1 << 20));
    const std::vector<char> written(100, 'x');
    for (Arena* each : {arena.get(), pinned.get()}) {
      each->write(50, written.data(), 100);
      std::vector<char> read(101, 'y');
      each->read(50, read.data(), 101);
      CHECK(std::memcmp(read.data(), written.data(), 100) == 0);
      CHECK(read[100] == 0);  // arenas are zeroed
    }
  }
  CHECK(runtime_allocations() == before);
}

TEST_CASE("memory that the device does not have is refused with figures", "[cuda]") {
  const auto device = cuda::open_device(0);
  CHECK_THROWS_WITH(
      device->allocate(Tier::device, 2 * kRuntimeDeviceBytes),
      Catch::Contains("device memory: the plan's peak is 4.00 GiB") && Catch::Contains("short by"));
  CHECK_NOTHROW(device->allocate(Tier::device, 1 << 20));
}

TEST_CASE("no op starts before its step", "[cuda]") {
  let_streams_lag(true);
  const auto device = cuda::open_device(0);
  DeviceQueues& queues = device->queues();
  double first = 1;
  for (int step = 0; step < 100; ++step) {
    queues.begin({1, 1, 1, 1, 1, 1});
    for (const Stream stream : {Stream::h2d, Stream::compute}) {
      queues.started(stream, 0);
      queues.submitted(stream, 0);
    }
    queues.finish();
    for (const Stream stream : {Stream::h2d, Stream::compute}) {
      const Span span = queues.span_of(stream, 0);
      first = std::min(first, span.start);
      CHECK(span.end >= span.start);
    }
  }
  let_streams_lag(false);
  CHECK(first >= 0);
}

TEST_CASE("there is one device, and it has an id", "[cuda]") {
  CHECK(cuda::why_unavailable().empty());
  CHECK(cuda::device_ids().size() == 1);
  CHECK_THROWS_WITH(cuda::open_device(1), Catch::Contains("there is no device 1, there are 1"));
}

}  // namespace longspan::testing
