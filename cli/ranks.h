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

/// Runs `body` on every rank and returns the exit status. `local_ranks`: threads of this process;
/// 0: what the launcher has started, or this process alone. In one process an error is thrown. Of
/// several, the first reports what they threw in agree(); when one fails elsewhere, or vanishes,
/// the rank that notices says so and ends all of them at once with the status of the error.
int on_ranks(int64_t local_ranks, bool json, const std::function<void(const RankContext&)>& body);

/// Whether any rank passes yes; the same result on all ranks.
bool any_rank(Communicator& comm, bool yes);

}  // namespace longspan::cli
