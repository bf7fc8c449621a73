// AdamW where an optimizer of a device's plan lives on the host: the processor's work, on memory
// that the device's copies reach. Internal to engine/profile.
#pragma once

#include "engine/cpu/thread_pool.h"
#include "engine/profile/device_kernels.h"

namespace longspan {

/// Adds the samples of adamw_host, by all threads of the pool, which outlives their measurement.
void add_host_optimizer_samples(Sampler& sampler, DeviceBench& bench, ThreadPool& pool);

}  // namespace longspan
