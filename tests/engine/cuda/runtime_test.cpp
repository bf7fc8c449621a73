// The device that a GPU build opens, on the runtime of the tests.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/cuda/launch.h"
#include "engine/cuda/open_device.h"
#include "tests/engine/cuda/host_runtime.h"

namespace longspan::testing {

TEST_CASE("a device explains its memory, and gives all of it back", "[cuda]") {
  const int64_t before = runtime_allocations();
  {
    const auto device = open_host_device();
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
  const auto device = open_host_device();
  CHECK_THROWS_WITH(
      device->allocate(Tier::device, 2 * kRuntimeDeviceBytes),
      Catch::Contains("device memory: the plan's peak is 4.00 GiB") && Catch::Contains("short by"));
  CHECK_NOTHROW(device->allocate(Tier::device, 1 << 20));
}

TEST_CASE("no op starts before its step", "[cuda]") {
  const auto device = open_host_device(true);
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
  CHECK(first >= 0);
}

TEST_CASE("ops of a step of half an hour are timed as finely as those of a second", "[cuda]") {
  using std::chrono::microseconds, std::chrono::milliseconds;
  constexpr int32_t kOps = 6000;
  ManualClock clock;
  const auto device = open_host_device();
  DeviceQueues& queues = device->queues();
  const cuda::Queue& queue = device->queue(Stream::compute);
  queues.begin({kOps, 0, 0, 0, 0, 0});
  for (int32_t n = 0; n < kOps; ++n) {
    cuda::submit(queue, [&] { clock.advance(milliseconds(300)); });
    queues.started(Stream::compute, n);
    cuda::submit(queue, [&] { clock.advance(microseconds(1500)); });
    queues.submitted(Stream::compute, n);
  }
  queues.finish();
  double worst = 0;
  for (int32_t n = 0; n < kOps; ++n) {
    const Span span = queues.span_of(Stream::compute, n);
    worst = std::max(
        {worst, std::abs(span.end - span.start - 1.5e-3), std::abs(span.start - 0.3 - n * 0.3015)});
  }
  CHECK(worst < 1e-5);
}

TEST_CASE("devices have ids of their own, and there are no others", "[cuda]") {
  CHECK(cuda::why_unavailable().empty());
  const std::vector<std::string> ids = cuda::device_ids();
  CHECK(ids.size() == kRuntimeDevices);
  CHECK(std::set<std::string>(ids.begin(), ids.end()).size() == ids.size());
  CHECK_THROWS_WITH(cuda::open_device(kRuntimeDevices),
                    Catch::Contains("there is no device 4, there are 4"));
}

TEST_CASE("each device has its own memory", "[cuda]") {
  const auto first = open_host_device(false, 0), second = open_host_device(false, 1);
  const int64_t before = second->memory().used_bytes;
  const auto arena = first->allocate(Tier::device, 1 << 20);
  CHECK(second->memory().used_bytes == before);
}

}  // namespace longspan::testing
