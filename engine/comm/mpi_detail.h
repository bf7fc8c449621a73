// Shared by the parts of the MPI transport. Not installed, as it needs MPI's own header.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/mpi.h"

namespace longspan::mpi {

/// Throws failed("MPI: <what>: <MPI's text>") unless the code is MPI_SUCCESS.
void check(int code, const char* what);

/// Waits between two polls: yields the core for the first 200 us, then sleeps for 1/64 of the time
/// waited so far, 5 ms at most. Spinning would take the core from the rank that is waited for.
class Pause {
 public:
  void wait();

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Sends and receives heartbeats and notices of lost ranks. Owns the watching thread.
class Liveness {
 public:
  /// `comm` must have no other user while this object lives. `hosts` has one name per rank.
  Liveness(MPI_Comm comm, const MpiOptions& options, std::vector<std::string> hosts);
  /// Stops the thread immediately, unless close() has done so.
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// Throws `failed` with the reason if a rank is lost.
  void throw_if_lost() const;
  /// Marks the world as broken on this rank. The first reason is kept.
  void lose(const std::string& reason);
  /// Marks the world as broken on other ranks. Waits until the notices are sent, 1 s at most.
  void tell(const std::vector<int>& ranks, const std::string& reason) noexcept;
  void tell_all(const std::string& reason) noexcept;

  /// Sends a goodbye to the next rank, waits for that of the previous one and stops; or returns
  /// when a rank is lost. All ranks must call it.
  void close();

 private:
  struct Notice {
    std::string text;
    std::vector<MPI_Request> requests;
  };

  void run();
  void watch();
  void send_beat(char kind);
  void report(const std::string& message);

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  MpiOptions options_;
  std::vector<std::string> hosts_;

  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards the members below
  std::string reason_;
  std::list<Notice> notices_;  // kept to the end, as MPI may still use them
  bool closing_ = false;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;

  // The watching thread's messages. Members, as MPI may use them after that thread has ended.
  MPI_Request sending_ = MPI_REQUEST_NULL;
  char beat_out_ = 0;
  char beat_in_ = 0;
  std::string notice_in_;
};

}  // namespace longspan::mpi
