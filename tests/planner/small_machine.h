// Small machines with separate devices, for tests of the search.
#pragma once

#include "hwprofiles/catalog.h"

namespace longspan::testing {

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
