// The NCCL communicators of a rank: one for the world, one for each group with collectives, and one
// for each channel of a pipeline's messages. Non-blocking, so that a waiting rank can check whether
// another rank is lost.
//
// NCCL runs the work of a communicator in the order of submission, and so that of communicators
// which share buffers, as world and groups do: their work is on one queue anyway. A channel shares
// with none: a message that waits for its receiver holds up only later ones of its channel.
//
// Needs NCCL's header; other code uses device_ranks.h. submit() is for one thread at a time,
// check() for any thread.
#pragma once

#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/group.h"
#include "planner/program/rank_links.h"

namespace longspan::cuda {

/// Whether a call failed; false for work in progress too.
inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

class NcclCommunicators {
 public:
  /// The ranks of a channel's communicator.
  static constexpr int kSender = 0, kReceiver = 1;

  /// Creates communicators for all ranks of `host`, and for the groups and channels of `links`, on
  /// the current device. Called by all ranks. Throws AgreedError on all if NCCL does not start on
  /// any.
  NcclCommunicators(Communicator& host, const RankLinks& links);
  /// Waits for the other ranks; during unwinding, aborts pending work instead.
  ~NcclCommunicators();
  NcclCommunicators(const NcclCommunicators&) = delete;
  NcclCommunicators& operator=(const NcclCommunicators&) = delete;

  /// Calls `put`, which calls NCCL's functions for the group's communicator, inside a group call.
  /// Returns when all of it is on the queue, which takes the peers' calls the first time. Throws
  /// failed as check(). REQUIRES: a group of the links, or the world.
  void submit(const Group& group, const std::function<ncclResult_t(ncclComm_t)>& put);
  /// The same for the communicator of a channel. REQUIRES: a channel of the links.
  void submit(int64_t channel, const std::function<ncclResult_t(ncclComm_t)>& put);
  /// If a rank is lost or NCCL has failed, aborts all communicators, so that work on the queue
  /// ends, and throws failed. Each later call throws the same.
  void check();
  /// Aborts all communicators; later calls throw failed.
  void cancel() noexcept;

 private:
  struct Part {
    std::vector<int> ranks;  // world ranks
    ncclComm_t comm = nullptr;
  };
  struct Channel {
    int64_t number;
    ncclComm_t comm = nullptr;
  };
  using Put = std::function<ncclResult_t(ncclComm_t)>;

  void start();
  void split(const Group& group);
  std::vector<Part>::iterator find(const std::vector<int>& ranks);
  void open(const std::vector<MessageChannel>& channels);
  void settle_together(const std::vector<ncclComm_t>& comms);
  ncclComm_t world() const { return parts_.front().comm; }
  void submit_to(ncclComm_t comm, const Put& put);
  void look(ncclComm_t comm, ncclResult_t& state);
  [[noreturn]] void give_up(const std::string& reason);
  void abort() noexcept;

  Communicator& host_;
  int exceptions_;  // uncaught when this object was made
  std::vector<Part> parts_;
  std::vector<Channel> channels_;
  std::mutex mutex_;    // guards NCCL's state
  std::string broken_;  // the error that every later call throws
};

}  // namespace longspan::cuda
