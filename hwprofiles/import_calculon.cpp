#include "hwprofiles/import_calculon.h"

#include <algorithm>
#include <cmath>

#include "base/yaml.h"  // JSON is YAML

namespace longspan {
namespace {

constexpr double kGiga = 1e9;
constexpr double kGiB = 1073741824;

// Figures whose source is the key of the file, or the assumption made without one.
class Source {
 public:
  Source(std::string origin, std::string date)
      : origin_(std::move(origin)), date_(std::move(date)) {}
  Figure from(double value, const char* unit, const std::string& key) const {
    return {value, unit, "assumption: " + key + " of the Calculon file " + origin_, date_};
  }
  Figure assumed(double value, const char* unit, const std::string& why) const {
    return {value, unit, "assumption: " + why, date_};
  }
  RateTable table(std::vector<RatePoint> points, const std::string& key) const {
    const Figure figure = from(0, "FLOP/s", key);
    return {figure.unit, figure.source, figure.date, std::move(points), {}};
  }

 private:
  std::string origin_, date_;
};

double best(const std::vector<std::vector<double>>& efficiency) {
  double found = 0;
  for (const auto& row : efficiency) found = std::max(found, row[1]);
  return found;
}

// Points at the cubes with this many GFLOP. A point of size 0 is left out, as rates extend beyond
// the first point.
std::vector<RatePoint> cubes(const std::vector<std::vector<double>>& efficiency, double peak) {
  std::vector<RatePoint> points;
  for (const auto& row : efficiency) {
    const double edge = std::round(std::cbrt(row[0] * kGiga / 2));
    if (edge >= 1) points.push_back({{edge, edge, edge}, row[1] * peak});
  }
  return points;
}

FabricProfile fabric(const YamlMap& network, const Source& source, const std::string& key) {
  return {source.from(network.real("bandwidth", 0) * network.real("efficiency", 0) * kGiga, "B/s",
                      key + ".bandwidth times efficiency"),
          source.from(network.real("latency", -1e-300), "s", key + ".latency")};
}

}  // namespace

HardwareProfile import_calculon(const std::string& text, const std::string& origin,
                                const std::string& name, const std::string& date) {
  const YamlMap file = YamlMap::parse(text, origin);
  const Source source(origin, date);
  const YamlMap products = file.map("matrix").map("float16");
  const YamlMap vectors = file.map("vector").map("float16");
  const YamlMap device = file.map("mem1"), host = file.map("mem2");
  const std::vector<YamlMap> networks = file.maps("networks");
  if (networks.empty()) throw file.error("networks", "expected at least one network");
  const auto efficiency = products.rows("gflops_efficiency", 2);
  const double peak = products.real("tflops", 0) * 1e12;

  HardwareProfile hw;
  hw.name = name;
  hw.devices_per_node = networks.front().whole("size", 1, 1024);
  const auto devices = static_cast<double>(hw.devices_per_node);

  hw.device.name = name;
  hw.device.backend = "none";
  hw.device.memory_bytes = source.from(device.real("GiB", 0) * kGiB, "B", "mem1.GiB");
  hw.device.reserved_bytes = source.assumed(0, "B", "Calculon reserves nothing");
  hw.device.memory_bandwidth =
      source.from(device.real("GBps", 0) * kGiga * best(device.rows("MB_efficiency", 2)), "B/s",
                  "mem1.GBps times the best of MB_efficiency");
  hw.device.peak_flops_float32 =
      source.from(vectors.real("tflops", 0) * 1e12 / 2, "FLOP/s", "half of vector.float16.tflops");
  hw.device.peak_flops_bfloat16 = source.from(peak, "FLOP/s", "matrix.float16.tflops");
  hw.device.op_overhead_seconds = source.assumed(0, "s", "Calculon's operations start at once");

  const Figure link =
      source.from(host.real("GBps", 0) * kGiga * best(host.rows("MB_efficiency", 2)), "B/s",
                  "mem2.GBps times the best of MB_efficiency");
  hw.link.h2d_bandwidth = hw.link.d2h_bandwidth = link;
  hw.link.duplex_factor = source.assumed(1, "1", "Calculon's directions do not disturb each other");
  hw.link.latency_seconds = source.assumed(0, "s", "Calculon's copies start at once");
  hw.host.memory_bytes =
      source.from(host.real("GiB", 0) * kGiB * devices, "B", "mem2.GiB of all devices of a node");
  hw.host.memory_bandwidth = source.assumed(2 * link.value * devices, "B/s",
                                            "as much as all links of a node take both ways");

  hw.nvme.capacity_bytes = source.assumed(0, "B", "no NVMe tier");
  hw.nvme.read_bandwidth = hw.nvme.write_bandwidth = source.assumed(0, "B/s", "no NVMe tier");
  hw.nvme.latency_seconds = source.assumed(0, "s", "no NVMe tier");
  hw.node_fabric = fabric(networks.front(), source, "networks[0]");
  hw.cluster_fabric =
      fabric(networks.back(), source, fmt::format("networks[{}]", networks.size() - 1));
  hw.compute_under_copy = hw.copy_under_compute = hw.compute_under_io = hw.io_under_compute =
      source.assumed(1, "1", "Calculon's copies do not disturb compute");

  const std::string key = "matrix.float16.gflops_efficiency, at cubes of that size,";
  for (const char* family : {"gemm_nt", "gemm_nn", "gemm_tn"}) {
    hw.rates[family] = source.table(cubes(efficiency, peak), key);
  }
  for (const char* family : {"attention_forward", "attention_backward"}) {
    hw.rates[family] = source.table({{{4096, 4096, 128}, best(efficiency) * peak}},
                                    "attention as two large products, matrix.float16");
  }
  validate(hw, origin);
  return hw;
}

}  // namespace longspan
