// Measuring how a device's queues slow each other down, and the host's file I/O.
// Internal to engine/profile.
#pragma once

#include "engine/profile/contention.h"
#include "engine/profile/device_kernels.h"

namespace longspan {

/// Products during copies, copies during each other, and file I/O during products. Takes about a
/// second on a GPU.
Contention measure_contention(DeviceBench& bench, FileArena& file);

}  // namespace longspan
