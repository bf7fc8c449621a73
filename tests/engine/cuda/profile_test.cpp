// The measurements of `longspan profile` on a GPU, run on the host device. Times are meaningless
// there; tested are which kernels run, how their figures are stored, and how a plan uses them.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "base/error.h"
#include "engine/comm/local.h"
#include "engine/cuda/libraries.h"
#include "engine/profile/device_attention.h"
#include "engine/profile/device_fabric.h"
#include "engine/profile/device_profile.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"
#include "planner/cost/cost_model.h"
#include "planner/cost/tiling.h"
#include "planner/search/search.h"
#include "tests/base/temporary_folder.h"
#include "tests/engine/cuda/host_runtime.h"

namespace longspan::testing {
namespace {

DeviceGrid small_grid() {
  DeviceGrid grid;
  grid.load_seconds = 1e-3;
  grid.product_rows = {8, 32};
  grid.product_widths = {16, 32};
  grid.chunks = {8, 16};
  grid.more_chunks = {32};
  grid.head_dim = 16;
  grid.other_head_dim = 8;
  grid.heads = 4;
  grid.kv_heads = 2;
  grid.heads_tried = {1, 2, 4, 6};
  grid.heads_chunks = {16};
  grid.rows = {8, 32};
  grid.widths = {16, 32};
  grid.loss_rows = {8};
  grid.vocabularies = {4096, 8192};
  grid.states = {64, 4096};
  grid.host_states = {64, 4096};
  grid.copies = {4096, 1 << 20};
  grid.contended_product = 64;
  grid.contended_copy = 1 << 20;
  grid.in_bytes = 8 << 20;
  grid.out_bytes = 16 << 20;
  return grid;
}

ProfileOptions quick() {
  ProfileOptions options;
  options.compute_threads = 1;
  options.nvme_directory = std::filesystem::temp_directory_path();
  options.seconds_budget = 30;
  return options;
}

HardwareProfile measured_once() {
  static const HardwareProfile hw = [] {
    const auto device = open_host_device();
    ProfileOptions options = quick();
    options.seconds_budget = 10;  // enough for all parts, except on a busy machine
    return measure_device(*device, options, small_grid(), {});
  }();
  return hw;
}

}  // namespace

TEST_CASE("a device's profile is complete, says what stands behind it, and survives its file") {
  const HardwareProfile hw = measured_once();
  CHECK_NOTHROW(validate(hw, "test"));
  CHECK(hw.device.backend == "cuda");
  CHECK(hw.device.name == "a device of the tests");
  CHECK(hw.devices_per_node == kRuntimeDevices);
  for (int i = 0; i < kKernelCount; ++i) {
    const auto kernel = static_cast<Kernel>(i);
    if (kernel == Kernel::exchange || kernel == Kernel::gather) continue;  // the fabric's
    if (kernel == Kernel::pass) continue;  // of other implementations
    const std::string family(name_of(kernel));
    INFO(family);
    REQUIRE(hw.rates.contains(family));
    const RateTable& table = hw.rates.at(family);
    CHECK(table.points.size() >= 2);
    CHECK(table.source.starts_with("measured: "));
    // Device and versions.
    CHECK_THAT(table.source, Catch::Contains("a device of the tests, driver "));
    CHECK_THAT(table.source, Catch::Contains(", CUDA 13.0, cuBLASLt 13.0.0, cuDNN 9.19.0"));
    CHECK(table.date == hw.device.memory_bandwidth.date);
  }
  for (const auto& [name, table] : hw.rates) {
    CHECK(name.find(' ') == std::string::npos);  // names with heads are not families
  }
  // Points on a grid, which interpolation needs: products of 2 x 2 x 2 shapes.
  CHECK(hw.rates.at("gemm_nt").points.size() == 8);
  CHECK(hw.rates.at("gemm_tn").points.size() == 8);
  CHECK(hw.rates.at("attention_forward").tiling.padded);
  CHECK(hw.rates.at("attention_backward_diagonal").tiling.workers == 2);
  CHECK(hw.rates.at("gemm_nt").tiling.shapes.empty());

  const TemporaryFolder folder;
  const std::string path = folder.path() / "gpu.yaml";
  save_hardware(path, hw);
  CHECK(load_hardware(path) == hw);
}

TEST_CASE("a device's memory is its arena's but for terms that have names") {
  const HardwareProfile hw = measured_once();
  CHECK(hw.device.memory_bytes.value == kRuntimeDeviceBytes);
  REQUIRE(hw.device.overhead.size() == 5);
  CHECK(hw.device.overhead.at("context").value == 300 << 20);
  CHECK(hw.device.overhead.at("cudnn").value == 0);
  CHECK(hw.device.overhead.at("cublaslt").value == cuda::kGemmWorkspaceBytes);
  CHECK(hw.device.overhead.at("scratch").value == cuda::kScratchBytes);
  CHECK(hw.device.overhead.at("kernels").value == 0);  // a host loads none
  CHECK(overhead_bytes(hw) == (300 << 20) + cuda::kGemmWorkspaceBytes + cuda::kScratchBytes);
  CHECK(hw.device.reserved_bytes.value > static_cast<double>(overhead_bytes(hw)));

  const auto device = open_host_device();
  ProfileOptions options = quick();
  options.seconds_budget = 0.5;
  options.device_memory_bytes = 256 << 20;
  const HardwareProfile asked = measure_device(*device, options, small_grid(), {});
  CHECK(capacities(asked)[0] == 256 << 20);
  options.device_memory_bytes = kRuntimeDeviceBytes;  // context and libraries take some of it
  CHECK_THROWS_AS(measure_device(*device, options, small_grid(), {}), Error);
}

TEST_CASE("ranks with devices measure what is between them, and what their transport takes") {
  constexpr int kRanks = 3;
  constexpr int64_t kTaken = 5 << 20;
  DeviceGrid grid = small_grid();
  grid.exchanged = 1 << 20;
  ProfileOptions options;
  options.device_memory_bytes = 256 << 20;
  const HardwareProfile before = measured_once();
  // The second rank's device has more taken: all ranks must reserve that much.
  std::array<std::unique_ptr<Arena>, kRanks> taken_by;
  const auto make_ranks = [&](Communicator& comm, const RankLinks& links, cuda::Device& device) {
    taken_by[comm.rank()] = device.allocate(Tier::device, comm.rank() == 1 ? kTaken : 4096);
    return cuda::make_local_ranks(comm, links, device);
  };
  for (const int ranks_here : {kRanks, 1}) {
    HardwareProfile hw = before;
    run_local_ranks(kRanks, [&](Communicator& comm) {
      const auto device = open_host_device(false, comm.rank());
      HardwareProfile own = comm.rank() == 0 ? before : HardwareProfile{};
      measure_device_fabric(own, comm, ranks_here, options, grid, *device, make_ranks);
      if (comm.rank() == 0) hw = own;
    });
    CHECK_NOTHROW(validate(hw, "test"));
    taken_by = {};
    const bool one_node = ranks_here == kRanks;
    const FabricProfile& measured = one_node ? hw.node_fabric : hw.cluster_fabric;
    const FabricProfile& other = one_node ? hw.cluster_fabric : hw.node_fabric;
    CHECK(measured.bandwidth.source.starts_with("measured: an all-to-all of 3 ranks"));
    CHECK(measured.latency_seconds.value > 0);
    CHECK(other == (one_node ? before.cluster_fabric : before.node_fabric));
    const auto taken = static_cast<int64_t>(hw.device.overhead.at("nccl").value);
    CHECK(taken >= kTaken);
    // Local ranks themselves have room for the sums of 256 doubles, and a little more.
    CHECK(taken <= kTaken + 4096 + kRanks * 256 * 8);
    CHECK(overhead_bytes(hw) == overhead_bytes(before) + taken);
    CHECK(capacities(hw)[0] == capacities(before)[0]);  // as requested
    CHECK(hw.devices_per_node == std::max<int64_t>(before.devices_per_node, ranks_here));
  }
}

TEST_CASE("where time is short what matters least is left out") {
  const auto device = open_host_device();
  ProfileOptions options = quick();
  options.seconds_budget = 1e-3;
  double last = 0;
  const HardwareProfile hw =
      measure_device(*device, options, small_grid(), [&](const std::string& what, double share) {
        CHECK(share >= last);
        CHECK(share <= 1);
        CHECK_FALSE(what.empty());
        last = share;
      });
  CHECK(last == 1);
  // The first chunks, of the first width of heads: rectangles and triangles.
  CHECK(hw.rates.at("attention_forward").points.size() == 4);
  CHECK(hw.rates.at("attention_backward_diagonal").points.size() == 2);
  // More time adds the other chunks, and still more the other width: each completely or not at all.
  const RateTables longer = measured_once().rates;
  const std::pair points{longer.at("attention_forward").points.size(),
                         longer.at("attention_backward_diagonal").points.size()};
  const std::pair<size_t, size_t> none{4, 2}, chunks{9, 3}, all{18, 6};
  CHECK((points == none || points == chunks || points == all));
}

TEST_CASE("shapes that a device's memory does not hold are left out") {
  const auto device = open_host_device();
  ProfileOptions options = quick();
  options.seconds_budget = 1e-3;
  DeviceGrid grid = small_grid();
  grid.vocabularies.push_back(int64_t{1} << 30);
  const HardwareProfile hw = measure_device(*device, options, grid, {});
  CHECK(hw.rates.at("loss").points.size() == 2);
}

TEST_CASE("a plan can be made with a measured device") {
  HardwareProfile hw = measured_once();
  hw.devices_per_node = 1;
  const Plan plan = search(load_model("tiny-llama"), hw, 4096, {}).best;
  CHECK(plan.dtype == DType::bfloat16);
  CHECK(plan.predicted.step_seconds > 0);
  CHECK(plan.predicted.peak_bytes[0] <= capacities(hw)[0]);
}

TEST_CASE("how attention is shared between processors is found from a few heads' rates") {
  Tiling truth;
  truth.shapes = {{128, 1, 1}};
  truth.workers = 132;
  truth.padded = true;
  truth.waited = 0.75;
  std::vector<HeadsRate> rates;
  std::mt19937 random(3);
  std::uniform_real_distribution<double> noise(0.999, 1.001);
  for (int shape = 0; shape < 3; ++shape) {
    const double queries = 1024 << (2 * shape);
    for (const double heads : {1, 2, 4, 8, 16, 32}) {
      const double share = tiled_share(truth, 132, {queries, 1, 1, heads});
      rates.push_back({shape, queries, heads, 1e14 * (shape + 1) * share * noise(random)});
    }
  }
  const HeadsTiling fit = fit_heads(rates, 132);
  CHECK(fit.tiling == truth);
  CHECK(fit.worst < 0.003);

  // With a table of eight heads, eight heads are predicted as measured, and other numbers as
  // shared.
  RateTable table;
  table.unit = "FLOP/s";
  table.source = "measured: by hand";
  table.date = "2026-11-22";
  table.points = {{{4096, 4096, 128}, 5e14}};
  share_by_heads(table, fit.tiling, 8);
  HardwareProfile hw = load_hardware("h100-80g");
  hw.rates = {{"attention_forward", table}};
  const CostModel cost(hw, DType::bfloat16);
  const auto seconds = [&](double heads) {
    return cost.seconds({Kernel::attention_forward, {4096, 4096, 128}, 5e14, 1, heads});
  };
  CHECK(seconds(8) == Approx(1).epsilon(1e-4));
  const double share = tiled_share(truth, 132, {4096, 1, 1, 8});
  CHECK(seconds(1) == Approx(share / tiled_share(truth, 132, {4096, 1, 1, 1})).epsilon(1e-4));
}

}  // namespace longspan::testing
