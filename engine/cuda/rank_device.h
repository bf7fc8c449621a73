// Assigns GPUs to ranks that have one each.
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

/// Returns this rank's device, an index into `here.ids`: the ranks of a host get its devices in
/// turn, whether every rank sees all devices or the launcher shows each its own. Called by all
/// ranks. Throws AgreedError (bad_input) if two ranks would get the same device or a rank has none.
int device_of_rank(Communicator& comm, const HostDevices& here);

/// The name of this host for HostDevices.
std::string host_name();

/// Opens the GPU of this rank. Called by all ranks. Throws AgreedError as device_of_rank(), or if
/// any rank's GPU cannot be opened.
std::unique_ptr<Device> open_rank_device(Communicator& comm);

}  // namespace longspan::cuda
