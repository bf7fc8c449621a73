// The CUDA backend: bfloat16 (or float32) with float accumulation, on the queues of a Device.
#pragma once

#include <memory>

#include "base/progress.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_ranks.h"
#include "engine/runtime/backend.h"

namespace longspan::cuda {

/// Returns a backend for programs like `program` on `device`, which must outlive it. `host_threads`
/// run AdamW if the optimizer is on the host; 0: all cores. `ranks` must be on the same device;
/// null for one rank. Plans of the library's attention are built here; `preparing` reports each,
/// from any thread, one at a time. Throws bad_input for a program of several ranks without `ranks`,
/// or a model whose heads are wider than the kernels support.
std::unique_ptr<Backend> make_backend(const Program& program, Device& device, int host_threads,
                                      std::unique_ptr<DeviceRanks> ranks = nullptr,
                                      const Progress& preparing = {});

}  // namespace longspan::cuda
