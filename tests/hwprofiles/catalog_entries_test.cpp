// The entries of the catalog: each must satisfy facts that follow from other figures, or that hold
// for all real machines, so that a wrong decimal point or unit is found.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "hwprofiles/catalog.h"
#include "hwprofiles/figures.h"

namespace longspan {
namespace {

constexpr double kGb = 1e9;

// Every device, and every node with all its devices.
std::vector<std::string> all_names() {
  std::vector<std::string> names = device_names();
  const std::vector<std::string> nodes = node_names();
  names.insert(names.end(), nodes.begin(), nodes.end());
  return names;
}

bool is_accelerator(const HardwareProfile& hw) { return hw.device.backend != "cpu"; }

TEST_CASE("names are sorted, and no node has a device's") {
  const std::vector<std::string> names = all_names();
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  const std::vector<std::string> devices = device_names();
  CHECK(std::is_sorted(devices.begin(), devices.end()));
  for (const char* known : {"a100-40g", "a100-80g", "cpu-example", "h100-80g", "h200-141g"}) {
    CHECK(std::binary_search(devices.begin(), devices.end(), known));
  }
}

TEST_CASE("every entry loads under its name and is valid") {
  const std::vector<std::string> names = all_names();
  const std::vector<HardwareProfile> together = load_hardware(names);
  REQUIRE(together.size() == names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    const HardwareProfile hw = load_hardware(names[i]);
    CHECK(hw.name == names[i]);
    CHECK_NOTHROW(validate(hw, names[i]));
    CHECK(together[i] == hw);  // reading one entry after another gives the same result
  }
}

TEST_CASE("a device lives in a node that takes it") {
  for (const std::string& name : device_names()) {
    INFO(name);
    CHECK(load_hardware("2x1x" + name).nodes == 2);
    CHECK(load_hardware(name).devices_per_node == 1);
  }
}

TEST_CASE("figures of the catalog are of the size such machines have") {
  for (const HardwareProfile& hw : load_hardware(all_names())) {
    INFO(hw.name);
    if (!is_accelerator(hw)) continue;
    const DeviceProfile& device = hw.device;
    CHECK(device.memory_bytes.value > 10 * kGb);
    CHECK(device.memory_bytes.value < 400 * kGb);
    CHECK(device.memory_bandwidth.value > 100 * kGb);
    CHECK(device.memory_bandwidth.value < 10e12);
    // Devices with matrix units are at least this much faster; a figure with sparsity would double
    // the quotient.
    CHECK(device.peak_flops_bfloat16.value > 1.5 * device.peak_flops_float32.value);
    CHECK(device.peak_flops_bfloat16.value < 35 * device.peak_flops_float32.value);
    // Half the bits give at least twice the rate, where there are units for them. GeForce has half
    // of it for sums in single precision, but for products in 4 bits.
    const bool halves_sums = device.name.find("GeForce") != std::string::npos;
    struct Step {
      double wide, narrow, expected;
    };
    for (const auto& [wide, narrow, expected] :
         {Step{device.peak_flops_bfloat16.value, device.peak_flops_float8.value, 2},
          Step{device.peak_flops_float8.value, device.peak_flops_float4.value,
               halves_sums ? 4.0 : 2.0}}) {
      if (narrow > 0) CHECK(narrow / wide == Approx(expected).epsilon(0.51));
      if (narrow > 0) CHECK(narrow / wide >= 1.99);
    }
    // The device of a DGX Spark has most of the one memory, and a workstation little of its own.
    const double host_per_device = hw.name == "gb10" || hw.name == "dgx-spark" ? 9
                                   : hw.name == "workstation"                  ? 34
                                                                               : 50;
    CHECK(hw.host.memory_bytes.value >
          host_per_device * kGb * static_cast<double>(hw.devices_per_node));
    CHECK(hw.host.memory_bandwidth.value > 100 * kGb);
    CHECK(hw.link.h2d_bandwidth.value > 10 * kGb);
    CHECK(hw.link.h2d_bandwidth.value < 450 * kGb);
    // One direction of NVLink 5 is 900 GB/s: a figure for both would be more.
    CHECK(hw.node_fabric.bandwidth.value <= 900 * kGb);
    CHECK(hw.cluster_fabric.bandwidth.value <= hw.node_fabric.bandwidth.value);
    CHECK(hw.node_fabric.latency_seconds.value < 1e-4);
  }
}

TEST_CASE("no table is faster than its device can be") {
  for (const HardwareProfile& hw : load_hardware(device_names())) {
    if (!is_accelerator(hw)) continue;
    const double peak = hw.device.peak_flops_bfloat16.value;
    const auto check = [&](const RateTables& tables) {
      for (const auto& [family, table] : tables) {
        INFO(hw.name << " " << family);
        if (table.unit != "FLOP/s") continue;
        for (const RatePoint& point : table.points) {
          // Consumer cards run above the clock that their nominal peak assumes.
          CHECK(point.rate / peak <= 1.25);
          CHECK(point.rate / peak >= 0.1);
        }
      }
    };
    check(hw.rates);
    for (const auto& [kernel, tables] : hw.attention_kernels) check(tables);
  }
}

TEST_CASE("every accelerator has curves for products and attention") {
  for (const HardwareProfile& hw : load_hardware(device_names())) {
    INFO(hw.name);
    for (const char* family : {"gemm_nt", "gemm_nn", "gemm_tn"}) CHECK(hw.rates.contains(family));
    if (!is_accelerator(hw)) continue;
    CHECK(hw.attention_kernels.contains(hw.attention_kernel));
    for (const auto& [kernel, tables] : hw.attention_kernels) {
      INFO(kernel);
      CHECK(tables.contains("attention_forward"));
      CHECK(tables.contains("attention_backward"));
      CHECK(with_attention_kernel(hw, kernel).rates.contains("attention_forward"));
    }
  }
}

TEST_CASE("a curve that is borrowed says so") {
  const RateTable lent = load_hardware("a100-80g-pcie").rates.at("gemm_nt");
  const RateTable borrowed = load_hardware("h100-80g").rates.at("gemm_nt");
  CHECK(lent.source.starts_with("measured: "));
  CHECK(borrowed.source.starts_with("assumption: "));
  REQUIRE(borrowed.points.size() == lent.points.size());
  // Their best products are 794.5 and 252.9 TFLOP/s, 80.3 and 81.1 percent of peak.
  for (size_t i = 0; i < lent.points.size(); ++i) {
    CHECK(borrowed.points[i].shape == lent.points[i].shape);
    CHECK(borrowed.points[i].rate / 989.4e12 ==
          Approx(lent.points[i].rate / 312e12 * 80.3 / 81.1).epsilon(0.002));
  }
}

TEST_CASE("figures of the catalog are in base units") {
  const HardwareProfile hw = load_hardware("a100-80g");
  CHECK(hw.device.backend == "cuda");
  CHECK(hw.device.memory_bytes.value == 80.0 * (1 << 30));
  CHECK(hw.device.peak_flops_bfloat16.value == 312e12);
  CHECK(hw.link.h2d_bandwidth.value == 25e9);
  CHECK(hw.host.memory_bytes.unit == "B");
  const RateTable attention = load_hardware("h200-141g").rates.at("attention_backward");
  REQUIRE(attention.points.size() == 5);
  CHECK(attention.points[3].shape == std::array<double, 3>{16384, 16384, 128});
  CHECK(attention.points[3].rate == 517e12);
}

TEST_CASE("what the makers say of a whole system") {
  const auto total = [](const char* name, auto figure) {
    const HardwareProfile hw = load_hardware(name);
    return figure(hw) * static_cast<double>(hw.devices());
  };
  const auto memory = [](const HardwareProfile& hw) { return hw.device.memory_bytes.value; };
  const auto bfloat16 = [](const HardwareProfile& hw) {
    return hw.device.peak_flops_bfloat16.value;
  };
  const auto network = [](const HardwareProfile& hw) { return hw.cluster_fabric.bandwidth.value; };
  CHECK(total("dgx-a100-80g", bfloat16) == Approx(2.5e15).epsilon(0.01));
  CHECK(total("dgx-h100", memory) == Approx(640e9).epsilon(0.08));
  CHECK(total("dgx-h200", memory) == Approx(1128e9).epsilon(0.08));
  CHECK(total("dgx-b200", memory) == Approx(1440e9).epsilon(0.08));
  CHECK(total("gb200-nvl72", bfloat16) == Approx(180e15));
  CHECK(total("gb200-nvl72", memory) == Approx(13.4e12).epsilon(0.08));
  CHECK(total("gb300-nvl72", bfloat16) == Approx(180e15));
  CHECK(total("gb300-nvl72", memory) == Approx(20e12).epsilon(0.08));
  CHECK(total("mi300x-8gpu", bfloat16) == Approx(10.4e15).epsilon(0.01));
  CHECK(total("mi250-8gcd", memory) == Approx(4 * 128e9).epsilon(0.08));
  CHECK(total("dgx-1v", bfloat16) == Approx(1e15));
  CHECK(total("dgx-1v", memory) == Approx(256e9).epsilon(0.08));
  CHECK(total("h20-8gpu", bfloat16) == Approx(8 * 148e12));
  CHECK(total("dgx-h100", network) == Approx(3200e9 / 8));
  CHECK(total("aws-p4d", network) == Approx(400e9 / 8));
}

TEST_CASE("what only differs in one part is the same in the others") {
  const HardwareProfile small = load_hardware("a100-40g"), large = load_hardware("a100-80g");
  CHECK(small.rates == large.rates);
  CHECK(small.link == large.link);
  CHECK_FALSE(small.host == large.host);
  CHECK(load_hardware("dgx-h200").host == load_hardware("dgx-h100").host);
}

// What an A800 and an H800 do not share with an A100 and an H100 is NVLink.
TEST_CASE("a card with narrower NVLink differs in the fabric of its node") {
  for (const auto& [narrow, wide] :
       {std::pair{"8xa800", "8xa100"}, std::pair{"4xh800", "4xh100"}}) {
    INFO(narrow);
    const HardwareProfile a = load_hardware(narrow), b = load_hardware(wide);
    CHECK(a.rates == b.rates);
    CHECK(a.attention_kernels == b.attention_kernels);
    std::vector<double> figures, others;
    visit_figures(a, [&](const FigureRule& rule, const Figure& figure) {
      if (std::string(rule.section) == "device") figures.push_back(figure.value);
    });
    visit_figures(b, [&](const FigureRule& rule, const Figure& figure) {
      if (std::string(rule.section) == "device") others.push_back(figure.value);
    });
    CHECK(figures == others);
    CHECK(a.link == b.link);
    CHECK(a.device.name != b.device.name);
    CHECK(a.node_fabric.bandwidth.value < 0.7 * b.node_fabric.bandwidth.value);
  }
  HardwareProfile a800 = load_hardware("dgx-a100-80g");
  a800.name = "a800-8gpu";
  a800.device = load_hardware("a800").device;
  a800.node_fabric = load_hardware("a800").node_fabric;
  CHECK(load_hardware("a800-8gpu") == a800);
}

}  // namespace
}  // namespace longspan
