// Device and host memory on a machine with a GPU.
#pragma once

#include <memory>

#include "engine/runtime/arena.h"

namespace longspan::cuda {

/// Allocates zeroed memory on the current device, in one piece. Throws no_fit with the shortfall.
std::unique_ptr<Arena> take_device_memory(int64_t bytes);

/// Allocates pinned host memory, in one mapping: huge pages where the system has them, on the NUMA
/// node nearest to the current device, first touched by many processors in parallel, then pinned
/// (far faster than an allocation by the driver). Throws no_fit with the shortfall.
std::unique_ptr<Arena> take_pinned_memory(int64_t bytes);

}  // namespace longspan::cuda
