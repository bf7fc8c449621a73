// Exchanges between ranks in device memory. Everything is submitted to one queue of the rank's
// device, that of the plan's exchange stream, except the messages that stages of a pipeline send by
// NCCL, which have queues of their own. The host waits only until other ranks have submitted their
// part, never for a device.
//
// There are two kinds. Ranks that are threads of one process share a GPU and copy from each other
// (local). Ranks that are processes have a GPU each and use NCCL, which finds its peers through the
// communicator.
//
// Sums are deterministic. Local ranks sum in rank order, in float with one rounding, so they have
// the bits of the CPU backend's sums. NCCL's order depends on the ranks, their topology, NCCL's
// version and settings (NCCL_ALGO, NCCL_PROTO), but not on timing. NCCL sums bfloat16 (the
// activations of a tensor group) in bfloat16.
//
// A DeviceRanks belongs to its backend. One thread at a time, except check() and sent_bytes().
#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/cuda/device.h"
#include "engine/runtime/exchange.h"
#include "planner/program/rank_links.h"

namespace longspan::cuda {

class DeviceRanks : public RankExchange {
 public:
  /// Throws failed, after aborting pending work, if a rank is lost or the transport has failed. For
  /// callers that wait for the device: a lost rank never submits its part.
  virtual void check() = 0;
  /// Bytes of payload submitted to other ranks so far, counted as if each part were sent directly
  /// to its destination.
  virtual int64_t sent_bytes() const = 0;
};

/// For ranks that are threads sharing one GPU, each with its own Device on it. Called by all ranks
/// of the world; `comm` and `device` must outlive the result. Throws bad_input for more than 64
/// ranks.
std::unique_ptr<DeviceRanks> make_local_ranks(Communicator& comm, const RankLinks& links,
                                              Device& device);

/// For ranks with a GPU each, by NCCL. Called by all ranks of the world; lifetimes as above. Throws
/// AgreedError on all ranks if on any of them NCCL cannot be opened, is older than this build
/// requires, or does not start, or if a channel's messages are not received in the order in which
/// they are sent (check_channel_order()).
///
/// NCCL's buffers are in no arena. It allocates them when it starts and when two ranks first
/// communicate. Their size is the device's free memory before this call minus that after the first
/// step, without arenas.
std::unique_ptr<DeviceRanks> make_nccl_ranks(Communicator& comm, const RankLinks& links,
                                             Device& device);

}  // namespace longspan::cuda
