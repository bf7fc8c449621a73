#include "hwprofiles/import_calculon.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/replaced.h"

namespace longspan {
namespace {

using testing::replaced;

using Catch::Matchers::Contains;

// A made-up device in the form of Calculon's files.
const std::string kSystem = R"({
  "matrix": {"float16": {"tflops": 400, "gflops_efficiency": [[128, 0.9], [2, 0.5], [0, 0.1]]}},
  "vector": {"float16": {"tflops": 80, "gflops_efficiency": [[16, 0.9], [0, 0.1]]}},
  "mem1": {"GiB": 64, "GBps": 2000, "MB_efficiency": [[100, 0.75], [0, 0.3]]},
  "mem2": {"GiB": 256, "GBps": 32, "MB_efficiency": [[100, 0.5], [0, 0.3]]},
  "processing_mode": "no_overlap",
  "networks": [
    {"bandwidth": 300, "efficiency": 0.5, "size": 8, "latency": 0.00001, "must_be_filled": true},
    {"bandwidth": 25, "efficiency": 0.8, "size": 65536, "latency": 0.00002}]
})";

HardwareProfile import(const std::string& text) {
  return import_calculon(text, "sys.json", "never-was", "2026-01-02");
}

TEST_CASE("a Calculon file becomes a profile") {
  const HardwareProfile hw = import(kSystem);
  CHECK(hw.name == "never-was");
  CHECK(hw.devices() == 8);
  CHECK(hw.device.backend == "none");
  CHECK(hw.device.memory_bytes.value == 64.0 * (1 << 30));
  CHECK(hw.device.memory_bandwidth.value == Approx(1.5e12));
  CHECK(hw.device.peak_flops_bfloat16.value == 400e12);
  CHECK(hw.link.h2d_bandwidth.value == Approx(16e9));
  CHECK(hw.host.memory_bytes.value == 8 * 256.0 * (1 << 30));
  CHECK(hw.node_fabric.bandwidth.value == Approx(150e9));
  CHECK(hw.node_fabric.latency_seconds.value == 1e-5);
  CHECK(hw.cluster_fabric.bandwidth.value == Approx(20e9));
  CHECK(hw.device.memory_bytes.source == "assumption: mem1.GiB of the Calculon file sys.json");
  CHECK(hw.device.memory_bytes.date == "2026-01-02");

  // 2 GFLOP are a product of size 1000 cubed, 128 GFLOP of 4000; other sizes are not cubes.
  const RateTable products = hw.rates.at("gemm_nn");
  REQUIRE(products.points.size() == 2);
  CHECK(products.points[0].shape == std::array<double, 3>{4000, 4000, 4000});
  CHECK(products.points[0].rate == Approx(360e12));
  CHECK(products.points[1].shape == std::array<double, 3>{1000, 1000, 1000});
  CHECK(products.points[1].rate == Approx(200e12));
}

TEST_CASE("a file that is no system of Calculon's is refused with its line") {
  CHECK_THROWS_WITH(import("{\"matrix\": ]"),
                    Contains("sys.json:1:") && Contains("not valid YAML"));
  CHECK_THROWS_WITH(import("{}"), Contains("sys.json:1:1: matrix: missing"));
  CHECK_THROWS_WITH(import(replaced(kSystem, "\"GiB\": 64", "\"GB\": 64")),
                    Contains("sys.json:4:") && Contains("mem1.GiB: missing"));
  CHECK_THROWS_WITH(import(replaced(kSystem, "\"tflops\": 400", "\"tflops\": -1")),
                    Contains("matrix.float16.tflops: expected a finite number > 0"));
  CHECK_THROWS_WITH(import(replaced(kSystem, "\"size\": 8", "\"size\": 0")),
                    Contains("networks[0].size: expected a whole number"));
  CHECK_THROWS_WITH(import(replaced(kSystem, "[100, 0.5]", "[100]")),
                    Contains("mem2.MB_efficiency: row 0: expected 2 numbers"));
  CHECK_THROWS_AS(import("[1, 2]"), Error);
}

}  // namespace
}  // namespace longspan
