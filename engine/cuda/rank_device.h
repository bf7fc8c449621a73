// Assigns one GPU to each rank of a host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cuda/device.h"

namespace longspan::cuda {

/// This host and its devices: the host's name, and device_ids().
struct HostDevices {
  std::string host;
  std::vector<std::string> ids;
};

/// Returns this rank's device, an index into `here.ids`. Ranks of a host get its devices in rank
/// order, whether each rank sees all devices or, by CUDA_VISIBLE_DEVICES, only its own. Collective:
/// all ranks must call it. Throws AgreedError (bad_input) if two ranks would get the same device or
/// a rank has none.
int device_of_rank(Communicator& comm, const HostDevices& here);

/// The name of this host for HostDevices.
std::string host_name();

/// Opens the GPU of this rank. Collective. Throws AgreedError like device_of_rank(), or if
/// any rank's GPU cannot be opened.
std::unique_ptr<Device> open_rank_device(Communicator& comm);

}  // namespace longspan::cuda
