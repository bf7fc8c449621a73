// A small model and small machines with separate devices, for tests of the search.
#pragma once

#include <cstdint>

#include "hwprofiles/catalog.h"
#include "models/catalog.h"

namespace longspan::testing {

inline constexpr int64_t kMiB = int64_t{1} << 20;

inline ModelSpec small_model() {
  ModelSpec m = load_model("tiny-llama");
  m.layers = 4;
  m.hidden = 256;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 32;
  m.ffn = 688;
  m.vocab = 8192;
  return m;
}

/// A machine whose devices share only their host, without storage.
inline HardwareProfile small_machine(int64_t nodes, int64_t per_node, int64_t device_bytes,
                                     int64_t host_bytes) {
  HardwareProfile hw = load_hardware("cpu-example");
  hw.device.backend = "none";
  hw.device.peak_flops_bfloat16 = hw.device.peak_flops_float32;
  hw.device.memory_bytes.value = static_cast<double>(device_bytes);
  hw.device.reserved_bytes.value = 0;
  hw.host.memory_bytes.value = static_cast<double>(host_bytes);
  hw.nodes = nodes;
  hw.devices_per_node = per_node;
  hw.nvme.capacity_bytes.value = 0;
  return hw;
}

}  // namespace longspan::testing
