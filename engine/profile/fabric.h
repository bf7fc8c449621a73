// Measuring what ranks pay to exchange: internal to engine/profile but for what profile.h says.
#pragma once

#include <string>

#include "engine/comm/communicator.h"
#include "engine/profile/measured.h"

namespace longspan {

/// The alpha-beta model of an all-to-all, as one device on a processor of its own would see it.
struct FabricRates {
  double latency_seconds = 0;
  double bandwidth = 0;  // B/s a rank sends, to all others together
};

/// Called by all ranks together; the same on all. REQUIRES: two ranks or more, all of them on one
/// processor if `share_processor`.
FabricRates measure_exchange(Communicator& comm, bool share_processor);

/// Writes them as the node's fabric or as the cluster's.
void add_fabric(HardwareProfile& hw, const Figures& figures, const FabricRates& rates,
                bool one_node, const std::string& how);

}  // namespace longspan
