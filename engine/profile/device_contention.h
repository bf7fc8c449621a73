// Measures how much a device's queues and the host's file I/O slow each other down.
// Internal to engine/profile.
#pragma once

#include "engine/profile/contention.h"
#include "engine/profile/device_kernels.h"

namespace longspan {

/// Measures matrix products and copies during each other, copies in both directions at once, and
/// products and file I/O during each other. Takes about a second on a GPU.
Contention measure_contention(DeviceBench& bench, FileArena& file);

}  // namespace longspan
