// Ranks as processes, on one machine or several, started by mpirun or srun.
//
// Waiting ranks poll and sleep in between, so there may be more ranks than cores. In a build
// without MPI (LONGSPAN_MPI=OFF) this header is the same; what needs MPI throws bad_input.
//
// Liveness: a thread in each process sends a beat to the next rank every second and listens for
// those of the previous one, so that a rank that is stopped, hangs in the kernel or has vanished is
// noticed even where the launcher sees nothing. It watches from the first beat on, and counts only
// the time in which its own process runs too: a slow start or a machine put to sleep is no loss.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace longspan {

struct MpiOptions {
  /// For how long the previous rank may give no sign of life. At least 2: beats come each second.
  double silence_seconds = 20;
  /// Called once, on the watching thread, with "rank 1 (host a) gives no sign of life for 20 s".
  /// What to do is the caller's to decide: print it and call abort_mpi(), as a rule. When it
  /// returns (or is not set), all ranks that can be told of it throw that text from their
  /// exchanges. Must not throw.
  std::function<void(const std::string& message)> on_lost;
};

/// Whether a launcher started this process as one of several ranks, by what it left in the
/// environment. True for mpirun with a single rank as well.
bool launched_by_mpi();

/// MPI from its initialisation to its end: one object per process, as MPI cannot begin twice.
/// Construct and destroy it on the same thread, on all ranks.
class MpiWorld {
 public:
  /// Waits for all ranks to start. Throws bad_input for options out of range or a build without
  /// MPI; `failed` if MPI is in use already, has no MPI_THREAD_MULTIPLE, or reports an error. What
  /// goes wrong inside MPI_Init itself MPI prints, and ends the process.
  explicit MpiWorld(const MpiOptions& options);
  /// Waits for all ranks to come here and ends MPI. If a rank is lost, and when unwinding (the
  /// others are then told, as by abandon()), it waits for no rank and leaves MPI open; the process
  /// should end, and the launcher ends the rest.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  /// Lives as long as this object. After its exchange has thrown `failed`, MPI may still hold that
  /// exchange's buffers: leave them allocated and end the process.
  Communicator& communicator();

  int local_rank() const;  ///< among the ranks that share memory with this one, from 0
  int local_size() const;  ///< how many those are

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Ends all ranks at once with this exit status, from any thread, without destructors. Does not
/// return.
[[noreturn]] void abort_mpi(int status);

}  // namespace longspan
