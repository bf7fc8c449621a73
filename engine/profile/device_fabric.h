// What ranks with devices pay to exchange, and what their transport takes of device memory.
// Internal to engine/profile but for what profile.h says.
#pragma once

#include "engine/cuda/device_ranks.h"
#include "engine/profile/device_scratch.h"
#include "engine/profile/fabric.h"
#include "engine/profile/profile.h"

namespace longspan {

/// Makes the ranks whose exchanges are measured: cuda::make_nccl_ranks() or make_local_ranks().
using MakeDeviceRanks = std::function<std::unique_ptr<cuda::DeviceRanks>(
    Communicator&, const ParallelLayout&, cuda::Device&)>;

/// As measure_gpu_fabric(), for this rank's `device`, which has no other user meanwhile.
void measure_device_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here,
                           const ProfileOptions& options, const DeviceGrid& grid,
                           cuda::Device& device, const MakeDeviceRanks& make_ranks);

}  // namespace longspan
