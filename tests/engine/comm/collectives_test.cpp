// The collectives over ranks that are threads, and the calls they refuse.
#include "engine/comm/collectives.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "engine/comm/local.h"
#include "engine/comm/self.h"
#include "tests/engine/comm/collective_checks.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("collectives over one rank copy and send nothing") {
  SelfCommunicator self;
  CHECK(self.name() == "self");
  testing::check_collectives(self, 1);
  testing::check_exchanges(self, 1);
  CHECK(self.bytes_sent() == 0);
}

TEST_CASE("collectives over threads agree with plain loops, bit by bit") {
  for (const int size : {1, 2, 3, 4, 8}) {
    INFO(size << " ranks");
    run_local_ranks(size, [](Communicator& comm) {
      testing::check_collectives(comm, 100);
      testing::check_exchanges(comm, 200);
    });
  }
}

TEST_CASE("rows and columns of a mesh work at the same time") {
  run_local_ranks(4, [](Communicator& comm) { testing::check_mesh(comm, 2, 300); });
  run_local_ranks(8, [](Communicator& comm) { testing::check_mesh(comm, 4, 400); });
}

TEST_CASE("a reduction wants at most 256 KiB per peer") {
  CHECK(reduce_workspace_bytes(1, 1 << 30) == 0);
  CHECK(reduce_workspace_bytes(4, int64_t{1} << 40) == 3 * 262144);
  CHECK(reduce_workspace_bytes(4, 100) == 3 * 128);
  CHECK(reduce_workspace_bytes(4, 0) == 0);
}

TEST_CASE("collectives refuse arguments that cannot be right") {
  LocalWorld world(3);
  Communicator& comm = world.rank(1);
  const Group all = whole_world(comm);
  CHECK(all.ranks == std::vector<int>{0, 1, 2});
  CHECK(all.index == 1);
  alignas(float) std::byte workspace[16];
  float data[6]{};
  const auto refused = [](const auto& call, const char* text) {
    try {
      call();
      FAIL("nothing was thrown");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      CHECK_THAT(error.what(), Contains(text));
    }
  };
  refused([&] { reduce_scatter(comm, all, data, 5, data, workspace); }, "5 floats");
  refused([&] { reduce_scatter(comm, all, data, 6, data, std::span(workspace, 7)); },
          "7 bytes for 2 peers, expected at least 8");
  refused([&] { all_reduce(comm, all, data, 6, std::span(workspace + 1, 15)); }, "not aligned");
  refused([&] { all_reduce(comm, all, data, -1, workspace); }, "-1 floats");
  refused([&] { broadcast(comm, all, workspace, 3); }, "root 3 in a group of 3");
  refused([&] { barrier(comm, {{0, 1, 2}, 2}); }, "rank 1 is not member 2");
  refused([&] { barrier(comm, {}); }, "rank 1 is not member 0");
  refused([&] { all_to_all(comm, all, {}, {}); }, "0 spans");
  refused([&] { send_receive(comm, 1, workspace, 0, workspace); }, "rank 1 sends to itself");
  refused([&] { send_receive(comm, 0, workspace, 3, workspace); }, "receives from rank 3");
  refused([&] { send_receive(comm, 1, std::span(workspace, 1), 1, workspace); }, "1 bytes");
  CHECK(comm.bytes_sent() == 0);
}

}  // namespace
}  // namespace longspan
