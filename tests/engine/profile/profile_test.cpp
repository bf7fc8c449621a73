#include "engine/profile/profile.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "hwprofiles/catalog.h"
#include "planner/cost/cost_model.h"

using namespace longspan;

TEST_CASE("a measured profile is complete, valid and survives its file") {
  ProfileOptions options;
  options.compute_threads = 1;
  options.device_memory_bytes = 123456789;
  options.nvme_directory = std::filesystem::temp_directory_path();
  options.seconds_budget = 0.5;  // the fewest rounds
  double last = 0;
  bool falls = false;
  int rounds = 0;
  options.between_rounds = [&] { ++rounds; };
  std::string warning;
  options.warn = [&](const std::string& text) { warning = text; };
  const HardwareProfile hw = measure_machine(options, [&](const std::string& what, double share) {
    falls = falls || share < last || share > 1 || what.empty();
    last = share;
  });
  CHECK_FALSE(falls);
  CHECK(last == 1);
  CHECK(rounds >= 2);
  CHECK_NOTHROW(validate(hw, "test"));
  CHECK(hw.name == "local");
  CHECK(hw.device.backend == "cpu");
  CHECK(hw.host.cores == 1);
  CHECK(hw.device.memory_bytes.value == 123456789);
  CHECK(hw.device.memory_bytes.source.find("assumption: ") == 0);  // not measured
  CHECK(hw.host.memory_bytes.value > 0);
  for (int i = 0; i < kKernelCount; ++i) {
    const auto kernel = static_cast<Kernel>(i);
    // One process has no other to exchange with.
    if (kernel == Kernel::exchange || kernel == Kernel::gather) continue;
    if (kernel == Kernel::pass) continue;        // of other implementations
    if (kernel == Kernel::adamw_host) continue;  // the processor is the device
    const std::string family(name_of(kernel));
    INFO(family);
    // A figure found as a difference may miss points where the machine is busy, and says so.
    const bool difference = family == "loss" || family.starts_with("activation");
    if (difference && !warning.empty()) continue;
    REQUIRE(hw.rates.count(family) == 1);
    CHECK(hw.rates.at(family).points.size() >= 4);
    CHECK(hw.rates.at(family).source.find("measured: ") == 0);
    // No processor does that: such a rate is an artefact.
    for (const RatePoint& point : hw.rates.at(family).points) CHECK(point.rate < 1e14);
  }
  CHECK((warning.empty() || warning.find("left out") != std::string::npos));
  CHECK(hw.rates.at("gemm_nt").tiling.shapes.size() == 1);

  YAML::Emitter out;
  write_hardware(out, hw);
  CHECK(read_hardware(YamlMap::parse(out.c_str(), "local.yaml")) == hw);
}

TEST_CASE("profile options are checked before anything is measured") {
  ProfileOptions options;
  options.compute_threads = -1;
  CHECK_THROWS_AS(measure_machine(options, {}), Error);
  options = {};
  options.seconds_budget = 0;
  CHECK_THROWS_AS(measure_machine(options, {}), Error);
  options = {};
  options.device_memory_bytes = int64_t{1} << 50;
  CHECK_THROWS_WITH(measure_machine(options, {}), Catch::Contains("1.00 PiB asked for"));
  options.device_memory_bytes = 0;
  options.host_memory_bytes = int64_t{1} << 50;
  CHECK_THROWS_WITH(measure_machine(options, {}), Catch::Contains("1.00 PiB asked for"));
  options = {};
  options.nvme_directory = "/does/not/exist";
  CHECK_THROWS_AS(measure_machine(options, {}), Error);
}
