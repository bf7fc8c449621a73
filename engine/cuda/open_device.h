// The GPUs of this machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/device.h"

namespace longspan::cuda {

/// Why no GPU can be used here: the build has no CUDA, no driver, no device, or one too old. Empty
/// if there is one.
std::string why_unavailable();

/// What tells this process's devices from all others in the world, in their order. Throws failed if
/// they cannot be asked.
std::vector<std::string> device_ids();

/// Device `index` of this process, made current in every thread that uses it. Throws failed with
/// the reason if it cannot be used.
std::unique_ptr<Device> open_device(int index);

}  // namespace longspan::cuda
