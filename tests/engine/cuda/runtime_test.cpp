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
#include "engine/comm/collectives.h"
#include "engine/comm/local.h"
#include "engine/cuda/fault.h"
#include "engine/cuda/launch.h"
#include "engine/cuda/open_device.h"
#include "engine/cuda/opened_library.h"
#include "engine/cuda/rank_device.h"
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
                    Catch::Contains("there is no device 8, there are 8"));
}

TEST_CASE("every rank of this host opens a device of its own", "[cuda]") {
  std::vector<int64_t> used(2);
  run_local_ranks(2, [&](Communicator& comm) {
    const auto device = cuda::open_rank_device(comm);
    const auto arena = device->allocate(Tier::device, (comm.rank() + 1) << 20);
    barrier(comm, whole_world(comm));
    used[comm.rank()] = device->memory().used_bytes;
    barrier(comm, whole_world(comm));
  });
  CHECK(used[1] - used[0] == 1 << 20);
  CHECK_THROWS_WITH(
      run_local_ranks(kRuntimeDevices + 1,
                      [](Communicator& comm) { cuda::open_rank_device(comm); }),
      Catch::Contains("host " + cuda::host_name()) && Catch::Contains("8 GPUs can be seen"));
}

TEST_CASE("what kernels find wrong in their input is said", "[cuda]") {
  using Kind = cuda::Fault::Kind;
  CHECK_NOTHROW(cuda::throw_fault({Kind::none, 0}));
  CHECK_THROWS_WITH(cuda::throw_fault({Kind::token, 77}), Catch::Contains("token 77"));
  CHECK_THROWS_WITH(cuda::throw_fault({Kind::label, -3}), Catch::Contains("label -3"));
  CHECK_THROWS_WITH(cuda::throw_fault({Kind::loss, 0}), Catch::Contains("loss: not finite"));
  CHECK_THROWS_WITH(cuda::throw_fault({Kind::gradient_norm, 0}),
                    Catch::Contains("gradient norm is not finite"));
}

TEST_CASE("a library that is opened when it is needed says what is missing", "[cuda]") {
  const cuda::OpenedLibrary mathematics("libm.so.6", "roots need it", "install it");
  double (*root)(double) = mathematics.find(static_cast<double (*)(double)>(nullptr), "sqrt");
  CHECK(root(9.0) == 3.0);
  CHECK_THROWS_WITH(mathematics.find(root, "no_such_function"),
                    Catch::Contains("libm.so.6 has no no_such_function"));
  CHECK_THROWS_WITH(
      cuda::OpenedLibrary("libno-such-library.so.1", "products need it", "install it"),
      Catch::Contains("products need it, and libno-such-library.so.1 cannot be opened") &&
          Catch::Contains("install it or set LD_LIBRARY_PATH"));
}

TEST_CASE("each device has its own memory", "[cuda]") {
  const auto first = open_host_device(false, 0), second = open_host_device(false, 1);
  const int64_t before = second->memory().used_bytes;
  const auto arena = first->allocate(Tier::device, 1 << 20);
  CHECK(second->memory().used_bytes == before);
}

}  // namespace longspan::testing
