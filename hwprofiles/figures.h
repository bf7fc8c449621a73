// The list of a profile's figures: place in the YAML form, unit, and allowed values. Reading,
// writing and validation all walk this list.
#pragma once

#include <optional>
#include <string>

#include "hwprofiles/hardware_profile.h"

namespace longspan {

enum class FigureRange { positive, zero_allowed, fraction, optional };

struct FigureRule {
  const char* section;  // "" at the top level
  const char* key;
  const char* unit;
  FigureRange range;
};

/// Whether the figure is optional and missing.
inline bool is_missing(const FigureRule& rule, const Figure& figure) {
  return rule.range == FigureRange::optional && figure == Figure{};
}

/// Calls visit(rule, figure) for every figure of `hw` (const or not), in the order of the file.
template <class Profile, class Visit>
void visit_figures(Profile& hw, const Visit& visit) {
  const auto positive = FigureRange::positive;
  const auto zero = FigureRange::zero_allowed;
  const auto fraction = FigureRange::fraction;
  const auto optional = FigureRange::optional;
  visit({"device", "memory_bytes", "B", positive}, hw.device.memory_bytes);
  visit({"device", "reserved_bytes", "B", zero}, hw.device.reserved_bytes);
  visit({"device", "memory_bandwidth", "B/s", positive}, hw.device.memory_bandwidth);
  visit({"device", "peak_flops_float32", "FLOP/s", positive}, hw.device.peak_flops_float32);
  visit({"device", "peak_flops_bfloat16", "FLOP/s", zero}, hw.device.peak_flops_bfloat16);
  visit({"device", "peak_flops_float8", "FLOP/s", optional}, hw.device.peak_flops_float8);
  visit({"device", "peak_flops_float4", "FLOP/s", optional}, hw.device.peak_flops_float4);
  visit({"device", "speedup_float8", "1", optional}, hw.device.speedup_float8);
  visit({"device", "speedup_float4", "1", optional}, hw.device.speedup_float4);
  visit({"device", "op_overhead_seconds", "s", zero}, hw.device.op_overhead_seconds);
  visit({"host", "memory_bytes", "B", positive}, hw.host.memory_bytes);
  visit({"host", "memory_bandwidth", "B/s", positive}, hw.host.memory_bandwidth);
  visit({"link", "h2d_bandwidth", "B/s", positive}, hw.link.h2d_bandwidth);
  visit({"link", "d2h_bandwidth", "B/s", positive}, hw.link.d2h_bandwidth);
  visit({"link", "duplex_factor", "1", fraction}, hw.link.duplex_factor);
  visit({"link", "latency_seconds", "s", zero}, hw.link.latency_seconds);
  const auto nvme = hw.nvme.capacity_bytes.value == 0 ? zero : positive;
  visit({"nvme", "capacity_bytes", "B", zero}, hw.nvme.capacity_bytes);
  visit({"nvme", "read_bandwidth", "B/s", nvme}, hw.nvme.read_bandwidth);
  visit({"nvme", "write_bandwidth", "B/s", nvme}, hw.nvme.write_bandwidth);
  visit({"nvme", "latency_seconds", "s", zero}, hw.nvme.latency_seconds);
  visit({"node_fabric", "bandwidth", "B/s", positive}, hw.node_fabric.bandwidth);
  visit({"node_fabric", "latency_seconds", "s", zero}, hw.node_fabric.latency_seconds);
  visit({"cluster_fabric", "bandwidth", "B/s", positive}, hw.cluster_fabric.bandwidth);
  visit({"cluster_fabric", "latency_seconds", "s", zero}, hw.cluster_fabric.latency_seconds);
  visit({"", "compute_under_copy", "1", fraction}, hw.compute_under_copy);
  visit({"", "compute_under_io", "1", fraction}, hw.compute_under_io);
  visit({"", "copy_under_compute", "1", fraction}, hw.copy_under_compute);
  visit({"", "io_under_compute", "1", fraction}, hw.io_under_compute);
  visit({"", "disturbed_share", "1", optional}, hw.disturbed_share);
}

struct HardwareProblem {
  std::string section;  ///< "device", "rates.gemm_nt", or "" at the top level
  std::string key;
  std::string what;
};

/// The first reason for which validate() refuses `hw`, or none.
std::optional<HardwareProblem> find_problem(const HardwareProfile& hw);

}  // namespace longspan
