// Ranks that go by NCCL, over a fake NCCL: which of its functions are called for what, in
// which order and in pairs, and that all ranks end when one fails.
#include <nccl.h>

#include <array>
#include <catch2/catch.hpp>

#include "engine/comm/local.h"
#include "engine/profile/device_fabric.h"
#include "tests/engine/cuda/device_world.h"
#include "tests/engine/cuda/fake_nccl.h"
#include "tests/engine/cuda/host_runtime.h"

namespace longspan::testing {
namespace {

const Transport kNccl{cuda::make_nccl_ranks, true};

void start(int ranks) {
  DeviceWorld world(ranks, false, kNccl);
  run_local_ranks(ranks,
                  [&](Communicator& comm) { world.ranks(comm, ParallelLayout{.data = ranks}); });
}

}  // namespace

TEST_CASE("ranks by NCCL exchange what ranks on the host do", "[cuda]") {
  for (int turn = 0; turn < 10; ++turn) check_exchanges(kNccl, false);
  CHECK(nccl_communicators() == 0);
}

TEST_CASE("ranks by NCCL give the numbers of one", "[cuda]") {
  check_numbers(kNccl, DType::float32, exchanging_cases());
  check_numbers(kNccl, DType::bfloat16, exchanging_cases());
  CHECK(nccl_communicators() == 0);
}

TEST_CASE("queues of ranks by NCCL that lag change no bit", "[cuda]") {
  check_lagging_queues(kNccl, exchanging_cases());
}

TEST_CASE("messages of stages by NCCL wait for each other in no circle", "[cuda]") {
  for (int turn = 0; turn < 10; ++turn) check_messages(kNccl);
  CHECK(nccl_communicators() == 0);
}

TEST_CASE("pipelines by NCCL give the numbers of one rank", "[cuda]") {
  check_numbers(kNccl, DType::float32, pipeline_cases());
  check_numbers(kNccl, DType::bfloat16, pipeline_cases());
  CHECK(nccl_communicators() == 0);
}

TEST_CASE("queues of pipelines by NCCL that lag change no bit", "[cuda]") {
  check_lagging_queues(kNccl, pipeline_cases());
}

TEST_CASE("a rank that fails ends the other stages of a pipeline by NCCL", "[cuda]") {
  check_failure_in_pipeline(kNccl);
  CHECK(nccl_communicators() == 0);
}

TEST_CASE("a rank that fails ends those that wait for it in NCCL", "[cuda]") {
  check_failure(kNccl);
  CHECK(nccl_communicators() == 0);
}

TEST_CASE("what NCCL finds wrong on the device ends the step", "[cuda]") {
  DeviceWorld world(2, true, kNccl);
  const auto exchange = [&](Communicator& comm) {
    const int peer = 1 - comm.rank();
    cuda::Device& device = world.device(comm.rank());
    const auto ranks = world.ranks(comm, ParallelLayout{.data = 2});
    device.watch([&] { ranks->check(); });
    device.queues().begin({});
    std::array<std::byte, 8> own{}, theirs{};
    ranks->exchange(std::array{Send{peer, own.data(), 8}},
                    std::array{Receive{peer, theirs.data(), comm.rank() == 0 ? 4 : 8}});
    device.queues().finish();
  };
  CHECK_THROWS_WITH(run_local_ranks(2, exchange), Catch::Contains("NCCL: a fake failure"));
  for (int rank = 0; rank < 2; ++rank) world.device(rank).watch({});
  CHECK(nccl_communicators() == 0);
}

TEST_CASE("a profile's fabric is measured by NCCL", "[cuda]") {
  DeviceGrid grid;
  grid.exchanged = 1 << 16;
  std::array<HardwareProfile, 3> profiles;
  run_local_ranks(3, [&](Communicator& comm) {
    const auto device = open_host_device(false, comm.rank());
    measure_device_fabric(profiles[comm.rank()], comm, 1, {}, grid, *device, cuda::make_nccl_ranks);
  });
  CHECK(nccl_communicators() == 0);
  for (const HardwareProfile& hw : profiles) {
    CHECK(hw.cluster_fabric == profiles[0].cluster_fabric);  // the slowest rank's
    CHECK(hw.cluster_fabric.bandwidth.value > 0);
    CHECK(hw.node_fabric.bandwidth.value == 0);
    CHECK(hw.device.overhead.contains("nccl"));
  }
}

TEST_CASE("where NCCL does not start on one rank it starts on none", "[cuda]") {
  const FakeNccl fake(NCCL_VERSION_CODE, 1);
  CHECK_THROWS_WITH(start(3), Catch::Contains("rank 1: NCCL: start: a fake failure"));
  CHECK(nccl_communicators() == 0);
}

TEST_CASE("an older NCCL than the build's is refused", "[cuda]") {
  const FakeNccl fake(21805, -1);
  CHECK_THROWS_WITH(start(2), Catch::Contains("version 21805 is installed"));
}

}  // namespace longspan::testing
