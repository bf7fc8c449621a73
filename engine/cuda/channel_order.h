// Checks that messages of a pipeline can go by a transport that delivers in the order of sending.
#pragma once

#include <vector>

#include "engine/comm/communicator.h"
#include "planner/program/rank_links.h"

namespace longspan::cuda {

/// Throws bad_input on all ranks (AgreedError) unless every rank receives the messages of each of
/// its channels in the order in which they are sent. `channels` are this rank's, in the order of
/// their numbers. Called by all ranks.
void check_channel_order(Communicator& comm, const std::vector<MessageChannel>& channels);

}  // namespace longspan::cuda
