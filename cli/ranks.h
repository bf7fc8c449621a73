// Runs a verb on the ranks of a plan: this process alone, threads of it, or processes that mpirun
// or srun has started. One of them prints.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace longspan::cli {

/// One running rank.
struct RankContext {
  Communicator& comm;
  int ranks_here = 1;  // ranks that share this machine's cores
  bool is_leader() const { return comm.rank() == 0; }
};

/// Runs `body` on every rank and returns the exit status. `local_ranks`: the number of ranks as
/// threads of this process; 0: the processes that the launcher has started, or this process alone.
/// In one process an error is thrown. If several processes throw an error
/// in agree(), the first reports it. If one fails elsewhere, or is lost, the rank that notices
/// reports it and ends all of them at once with the status of the error.
int on_ranks(int64_t local_ranks, bool json, const std::function<void(const RankContext&)>& body);

/// Returns whether `yes` is true on any rank; the same result on all ranks.
bool any_rank(Communicator& comm, bool yes);

}  // namespace longspan::cli
