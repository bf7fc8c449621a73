// Which GPU a rank takes where ranks have one each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cuda/device.h"

namespace longspan::cuda {

/// This machine as one of those that ranks run on: its name, and what device_ids() says of it.
struct HostDevices {
  std::string host;
  std::vector<std::string> ids;
};

/// The device, an index of `here.ids`, of this rank: the ranks of a host take its devices in turn,
/// whether each of them sees all devices or the launcher shows it one of its own. Called by all
/// ranks. Throws AgreedError (bad_input) if two ranks would take the same device, or a rank has
/// none.
int device_of_rank(Communicator& comm, const HostDevices& here);

/// This host, as HostDevices has it.
std::string host_name();

/// The GPU of this rank. Called by all ranks. Throws AgreedError as device_of_rank(), or if a
/// rank's cannot be opened.
std::unique_ptr<Device> open_rank_device(Communicator& comm);

}  // namespace longspan::cuda
