// Ranks as threads of one process: for tests, and for runs whose ranks share a machine.
//
// A message is one copy, made by the receiving thread straight from the sender's buffer. Waiting
// threads sleep, so there may be more ranks than cores.
#pragma once

#include <functional>
#include <memory>

#include "engine/comm/communicator.h"

namespace longspan {

/// Owns the communicators of its ranks and what they share. REQUIRES: outlives every exchange.
class LocalWorld {
 public:
  /// Throws bad_input unless size >= 1.
  explicit LocalWorld(int size);
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  /// The view of one rank, for one thread at a time. REQUIRES: 0 <= rank < size.
  Communicator& rank(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs `body` once per rank of a new LocalWorld, rank 0 on the calling thread and each other on
/// one of its own, and returns when all have ended. An exception in a rank abandons the world for
/// it, so that ranks which wait for it end too. What is thrown in the end is the first rank's own
/// error, not those that followed from it: of the same kind, with "rank N: " in front if there are
/// several ranks. Of several ranks, other standard exceptions become `failed`. Throws bad_input
/// unless size >= 1, `failed` if the threads cannot be started.
void run_local_ranks(int size, const std::function<void(Communicator&)>& body);

}  // namespace longspan
