// Ranks as threads of one process, for tests and for runs whose ranks share a machine.
//
// The receiving thread copies a message straight from the sender's buffer. Waiting threads sleep,
// so there may be more ranks than cores.
#pragma once

#include <functional>
#include <memory>

#include "engine/comm/communicator.h"

namespace longspan {

/// Owns the communicators of its ranks and their shared state. REQUIRES: outlives every exchange.
class LocalWorld {
 public:
  /// Throws bad_input unless size >= 1.
  explicit LocalWorld(int size);
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  /// The communicator of one rank, for one thread at a time. REQUIRES: 0 <= rank < size.
  Communicator& rank(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs `body` once per rank of a new LocalWorld, rank 0 on the calling thread and each other rank
/// on a thread of its own, and returns when all have ended. An exception in a rank abandons the
/// world for it, so that ranks that wait for it end too. Rethrows the first error, not those that
/// followed from it, with the same kind and, if there are several ranks, prefixed with "rank N: ";
/// other standard exceptions then become `failed`. Throws bad_input unless size >= 1, `failed` if
/// the threads cannot be started.
void run_local_ranks(int size, const std::function<void(Communicator&)>& body);

}  // namespace longspan
