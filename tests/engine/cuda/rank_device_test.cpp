// The GPU that each rank of a host takes, on hosts that are described rather than present.
#include <array>
#include <catch2/catch.hpp>
#include <vector>

#include "engine/comm/local.h"
#include "engine/cuda/rank_device.h"

namespace longspan::testing {
namespace {

std::vector<int> devices_of(const std::vector<cuda::HostDevices>& ranks) {
  std::vector<int> devices(ranks.size(), -1);
  run_local_ranks(static_cast<int>(ranks.size()), [&](Communicator& comm) {
    devices[comm.rank()] = cuda::device_of_rank(comm, ranks[comm.rank()]);
  });
  return devices;
}

}  // namespace

TEST_CASE("the ranks of a host take its GPUs in turn", "[cuda]") {
  const cuda::HostDevices a{"a", {"GPU-1", "GPU-2", "GPU-3"}}, b{"b", {"GPU-4", "GPU-5"}};
  CHECK(devices_of({a, a, b, b, a}) == std::vector<int>{0, 1, 0, 1, 2});
  CHECK(devices_of({a, b, a, b}) == std::vector<int>{0, 0, 1, 1});
}

TEST_CASE("a rank that is shown one GPU takes that", "[cuda]") {
  CHECK(devices_of({{"a", {"GPU-1"}}, {"a", {"GPU-2"}}, {"b", {"GPU-3"}}}) ==
        std::vector<int>{0, 0, 0});
}

TEST_CASE("more ranks than GPUs are refused on all, and so is a host without", "[cuda]") {
  const cuda::HostDevices a{"a", {"GPU-1", "GPU-2"}}, b{"b", {"GPU-3"}};
  CHECK_THROWS_WITH(devices_of({a, a, a, b}),
                    Catch::Contains("host a: 3 ranks run there and 2 GPUs can be seen, so ranks 0 "
                                    "and 2 would share one") &&
                        Catch::Contains("--local-ranks"));
  CHECK_THROWS_WITH(devices_of({b, {"c", {}}}), Catch::Contains("host c shows it no GPU"));
}

}  // namespace longspan::testing
