// Measures the cost of exchanges between ranks with devices, and the device memory of their
// transport. Internal to engine/profile, except what profile.h exposes.
#pragma once

#include "engine/cuda/device_ranks.h"
#include "engine/profile/device_scratch.h"
#include "engine/profile/fabric.h"
#include "engine/profile/profile.h"

namespace longspan {

/// Creates the ranks whose exchanges are measured: cuda::make_nccl_ranks() or make_local_ranks().
using MakeDeviceRanks = std::function<std::unique_ptr<cuda::DeviceRanks>(
    Communicator&, const RankLinks&, cuda::Device&)>;

/// As measure_gpu_fabric(), for this rank's `device`. REQUIRES: the device has no other user.
void measure_device_fabric(HardwareProfile& hw, Communicator& comm, int ranks_here,
                           const ProfileOptions& options, const DeviceGrid& grid,
                           cuda::Device& device, const MakeDeviceRanks& make_ranks);

}  // namespace longspan
