// Ranks as processes, on one or several machines, started by mpirun or srun.
//
// Waiting ranks poll and sleep, so there may be more ranks than cores. In a build without MPI
// (LONGSPAN_MPI=OFF) this header is the same, and functions that need MPI throw bad_input.
//
// Liveness: a thread in each process sends a heartbeat to the next rank every second and listens
// for those of the previous one. This detects a rank that is stopped, hangs in the kernel or has
// vanished, even if the launcher notices nothing. Silence counts from the first heartbeat on, and
// only while the own process runs: a slow start or a suspended machine is not reported.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace longspan {

struct MpiOptions {
  /// Seconds without a heartbeat (sent every 1 s) after which a rank is lost. At least 2.
  double silence_seconds = 20;
  /// Called once, on the watching thread, with "rank 1 (host a) gives no sign of life for 20 s".
  /// Usually prints it and calls abort_mpi(). When it returns (or is not set), all reachable ranks
  /// throw that text from their exchanges. Must not throw.
  std::function<void(const std::string& message)> on_lost;
};

/// Whether a launcher started this process as one of several ranks, judged by environment
/// variables. True for mpirun with a single rank as well.
bool launched_by_mpi();

/// Owns MPI from initialisation to finalisation: one object per process, as MPI can be initialised
/// only once. Construct and destroy it on the same thread, on all ranks.
class MpiWorld {
 public:
  /// Waits for all ranks to start. Throws bad_input for options out of range or a build without
  /// MPI; `failed` if MPI is already in use, has no MPI_THREAD_MULTIPLE, or reports an error. MPI
  /// itself prints errors inside MPI_Init and ends the process.
  explicit MpiWorld(const MpiOptions& options);
  /// Waits for all ranks to get here and finalises MPI. If a rank is lost, or during unwinding
  /// (which tells the other ranks, as abandon() does), it does not wait and leaves MPI initialised;
  /// the process should then exit, and the launcher ends the other ranks.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  /// Lives as long as this object. After an exchange has thrown `failed`, MPI may still use the
  /// buffers of that exchange: leave them allocated and end the process.
  Communicator& communicator();

  int local_rank() const;  ///< among the ranks of this node, from 0
  int local_size() const;  ///< the number of ranks of this node

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Ends all ranks immediately with this exit status, without running destructors. Safe from any
/// thread. Does not return.
[[noreturn]] void abort_mpi(int status);

}  // namespace longspan
