// The samples of AdamW on the CPU, for plans that offload a device's optimizer to the host. They
// use pinned host memory, as steps do. Internal to engine/profile.
#pragma once

#include "engine/cpu/thread_pool.h"
#include "engine/profile/device_kernels.h"

namespace longspan {

/// Adds the samples of adamw_host on all threads of the pool, which must outlive their measurement.
void add_host_optimizer_samples(Sampler& sampler, DeviceBench& bench, ThreadPool& pool);

}  // namespace longspan
