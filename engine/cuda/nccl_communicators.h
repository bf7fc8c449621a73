// NCCL's communicators of a rank: one of the world, and one of each group of it that collectives
// are over. Not blocking: a waiting rank checks at the same time whether a rank is lost.
//
// Only what is built with NCCL's header knows this; everything else sees device_ranks.h. submit()
// is for one thread at a time, check() for any.
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

/// False for work that has only begun, too.
inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

class NcclCommunicators {
 public:
  /// Communicators of all ranks of `host` and of the groups that `parallel` has, on the current
  /// device. All ranks call it. Throws AgreedError on all if NCCL does not start on any.
  NcclCommunicators(Communicator& host, const ParallelLayout& parallel);
  /// Waits for the others, if there is no exception under way; else ends what is under way.
  ~NcclCommunicators();
  NcclCommunicators(const NcclCommunicators&) = delete;
  NcclCommunicators& operator=(const NcclCommunicators&) = delete;

  /// Calls `put`, which calls NCCL's functions for the group's communicator, within a group call,
  /// and returns when all of it is on the queue. Throws failed as check(). REQUIRES: a group of the
  /// plan's, or the world.
  void submit(const Group& group, const std::function<ncclResult_t(ncclComm_t)>& put);
  /// Throws failed if a rank is lost or NCCL has failed, and first aborts all communicators, so
  /// that what is on the queue ends. Then each later call throws the same.
  void check();

 private:
  struct Part {
    std::vector<int> ranks;  // of the world
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
  int exceptions_;  // in flight when this object was made
  std::vector<Part> parts_;
  std::mutex mutex_;    // guards NCCL's state
  std::string broken_;  // why nothing can go on
};

}  // namespace longspan::cuda
