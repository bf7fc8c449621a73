// Exchanges between ranks on device memory: everything is put on one queue of the rank's device,
// that of the stream which the plan's exchanges are on, and the host waits for other ranks only to
// have submitted their part, never for a device.
//
// Two kinds there are. Ranks that are threads of one process share a GPU and copy from each other
// (local); processes have a GPU each and go by NCCL, which finds its peers through the
// communicator.
//
// Sums are deterministic. Of local ranks they are in rank order, in float and rounded once, so they
// have the bits of the CPU backend's. NCCL's are in NCCL's order, which depends on the ranks, their
// wiring and its version and settings (NCCL_ALGO, NCCL_PROTO) but not on timing; it sums bfloat16
// (the activations of a tensor group) in bfloat16.
//
// A DeviceRanks belongs to its backend. One thread at a time, except check() and sent_bytes().
#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/cuda/device.h"
#include "engine/runtime/exchange.h"

namespace longspan::cuda {

class DeviceRanks : public RankExchange {
 public:
  /// Throws failed, and ends what is under way, if a rank is lost or the transport has failed. For
  /// those that wait for the device: a lost rank's part never comes.
  virtual void check() = 0;
  /// Payload sent to other ranks by what has been put on the queue so far, counted as if every part
  /// went straight to where it is needed.
  virtual int64_t sent_bytes() const = 0;
};

/// For ranks that are threads sharing one GPU, each with a Device of its own on it. Called by all
/// ranks of the world; `comm` and `device` must outlive it. Throws bad_input for more than 64
/// ranks.
std::unique_ptr<DeviceRanks> make_local_ranks(Communicator& comm, const ParallelLayout& parallel,
                                              Device& device);

/// For ranks with a GPU each, by NCCL. Called by all ranks of the world; as above. What fails on
/// one rank fails on all (AgreedError): NCCL cannot be opened, is older than what this build was
/// made for, or does not start.
///
/// NCCL's buffers are in no arena. It takes them when it starts and when two ranks first exchange
/// something, so what they come to shows as the device's free memory before this call less that
/// after the first step, arenas aside.
std::unique_ptr<DeviceRanks> make_nccl_ranks(Communicator& comm, const ParallelLayout& parallel,
                                             Device& device);

}  // namespace longspan::cuda
