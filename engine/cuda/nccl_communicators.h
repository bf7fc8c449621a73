// The NCCL communicators of a rank: one for the world and one for each group with collectives.
// Non-blocking, so that a waiting rank can check whether another rank is lost.
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
#include "planner/strategy/parallel_layout.h"

namespace longspan::cuda {

/// Whether a call failed; false for work in progress too.
inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

class NcclCommunicators {
 public:
  /// Creates communicators for all ranks of `host` and for the groups of `parallel`, on the current
  /// device. Called by all ranks. Throws AgreedError on all if NCCL does not start on any.
  NcclCommunicators(Communicator& host, const ParallelLayout& parallel);
  /// Waits for the other ranks; during unwinding, aborts pending work instead.
  ~NcclCommunicators();
  NcclCommunicators(const NcclCommunicators&) = delete;
  NcclCommunicators& operator=(const NcclCommunicators&) = delete;

  /// Calls `put`, which calls NCCL's functions for the group's communicator, inside a group call.
  /// Returns when all of it is on the queue. Throws failed as check(). REQUIRES: a group of the
  /// plan, or the world.
  void submit(const Group& group, const std::function<ncclResult_t(ncclComm_t)>& put);
  /// If a rank is lost or NCCL has failed, aborts all communicators, so that work on the queue
  /// ends, and throws failed. Each later call throws the same.
  void check();

 private:
  struct Part {
    std::vector<int> ranks;  // world ranks
    ncclComm_t comm = nullptr;
  };

  void start();
  void split(const Group& group);
  void settle_together(ncclComm_t comm);
  ncclComm_t world() const { return parts_.front().comm; }
  void look(ncclComm_t comm, ncclResult_t& state);
  [[noreturn]] void give_up(const std::string& reason);
  void abort() noexcept;

  Communicator& host_;
  int exceptions_;  // uncaught when this object was made
  std::vector<Part> parts_;
  std::mutex mutex_;    // guards NCCL's state
  std::string broken_;  // the error that every later call throws
};

}  // namespace longspan::cuda
