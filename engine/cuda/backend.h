// The CUDA backend: bfloat16 (or float32) with float accumulation, on the queues of a device.
#pragma once

#include <memory>

#include "engine/cuda/device.h"
#include "engine/cuda/device_ranks.h"
#include "engine/runtime/backend.h"

namespace longspan::cuda {

/// A backend for programs like `program` on `device`, which must outlive it. `host_threads` 0: all
/// cores; they are for AdamW where the optimizer lives on the host. `ranks` are on the same device;
/// null where there is one rank. Throws bad_input for a program of several ranks without them, or a
/// model whose heads are wider than the kernels take.
std::unique_ptr<Backend> make_backend(const Program& program, Device& device, int host_threads,
                                      std::unique_ptr<DeviceRanks> ranks = nullptr);

}  // namespace longspan::cuda
