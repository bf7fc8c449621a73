// Measures a GPU and its host. Internal to engine/profile, except what profile.h exposes.
//
// The profile of a machine with a GPU has three parts. The GPU and its link are measured with the
// CUDA backend's own kernels and the events of its queues. The host's memory and files are measured
// as for the CPU. The fabric between devices cannot be measured with one device: it is the
// catalog's for this device, or assumed equal to the link if the catalog does not have the device.
#pragma once

#include "engine/profile/device_scratch.h"
#include "engine/profile/profile.h"

namespace longspan {

/// Returns the profile of `device`. Throws bad_input for invalid options, no_fit if the requested
/// memory is not available. REQUIRES: the device has no other user.
HardwareProfile measure_device(
    cuda::Device& device, const ProfileOptions& options, const DeviceGrid& grid,
    const std::function<void(const std::string& what, double share)>& progress);

}  // namespace longspan
