// The memory of the tiers on a machine with a GPU.
#pragma once

#include <memory>

#include "engine/runtime/arena.h"

namespace longspan::cuda {

/// One allocation on the current device, zeroed. Throws no_fit with the shortfall.
std::unique_ptr<Arena> take_device_memory(int64_t bytes);

/// One mapping of the host's memory that the current device copies from and to by itself: huge
/// pages where the system has them, of the NUMA node that the device is near, touched by many
/// processors at once, then pinned (far faster than having the driver allocate it). Throws no_fit
/// with the shortfall.
std::unique_ptr<Arena> take_pinned_memory(int64_t bytes);

}  // namespace longspan::cuda
