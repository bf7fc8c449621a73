// Measures the cost of exchanges between ranks. Internal to engine/profile, except for profile.h.
#pragma once

#include <string>

#include "engine/comm/communicator.h"
#include "engine/profile/measured.h"

namespace longspan {

/// The alpha-beta model of an all-to-all between ranks that each have a processor of their own.
struct FabricRates {
  double latency_seconds = 0;
  double bandwidth = 0;  // B/s that a rank sends to all others together
};

/// Called by all ranks together; returns the same on all. REQUIRES: at least two ranks, all on one
/// processor if `share_processor`.
FabricRates measure_exchange(Communicator& comm, bool share_processor);

/// Writes the rates as the node's fabric if `one_node`, else as the cluster's.
void add_fabric(HardwareProfile& hw, const Figures& figures, const FabricRates& rates,
                bool one_node, const std::string& how);

}  // namespace longspan
