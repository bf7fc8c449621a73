// The GPUs of this machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/device.h"

namespace longspan::cuda {

/// Why no GPU can be used: the build has no CUDA, there is no driver or device, or the device is
/// too old. Empty if one can be used.
std::string why_unavailable();

/// Globally unique ids of this process's devices, in their order. Throws failed if they cannot be
/// queried.
std::vector<std::string> device_ids();

/// Opens device `index` of this process. It becomes current in every thread that uses it. Throws
/// failed with the reason if it cannot be used.
std::unique_ptr<Device> open_device(int index);

}  // namespace longspan::cuda
