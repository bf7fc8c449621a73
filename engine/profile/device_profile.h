// Measuring a GPU and what is around it. Internal to engine/profile but for what profile.h says.
//
// A profile of a machine with a GPU is that of the GPU and its link, measured through the CUDA
// backend's own kernels by the events of its queues; of the host's memory and files, measured as
// for the CPU; and of the fabric between devices, which one device cannot measure: where the
// catalog knows the device, its node's, else as a link.
#pragma once

#include "engine/profile/device_scratch.h"
#include "engine/profile/profile.h"

namespace longspan {

/// The profile of `device`, which has no other user. Throws bad_input for options that are
/// wrong, no_fit where the memory that was asked for is not there.
HardwareProfile measure_device(
    cuda::Device& device, const ProfileOptions& options, const DeviceGrid& grid,
    const std::function<void(const std::string& what, double share)>& progress);

}  // namespace longspan
