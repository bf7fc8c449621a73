// What the parts of the MPI transport share. Not installed: it needs MPI's own header.
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

/// Between two looks at what has not come yet: offers the core to others for 200 us, then sleeps,
/// for a 64th of the time waited so far, 5 ms at most. Spinning would take the core from the rank
/// that is waited for.
class Pause {
 public:
  void wait();

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// The beats of this process and what it has heard of lost ranks. Owns the watching thread.
class Liveness {
 public:
  /// `comm` has no other user while this object lives. `hosts` has a name per rank.
  Liveness(MPI_Comm comm, const MpiOptions& options, std::vector<std::string> hosts);
  /// Stops at once. After close() there is nothing left to stop.
  ~Liveness();
  Liveness(const Liveness&) = delete;
  Liveness& operator=(const Liveness&) = delete;

  bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// Throws `failed` with the reason if a rank is lost.
  void throw_if_lost() const;
  /// Marks the world as broken on this rank, for the first reason there is.
  void lose(const std::string& reason);
  /// Marks it as broken on other ranks. Waits until that is sent, a second at most.
  void tell(const std::vector<int>& ranks, const std::string& reason) noexcept;
  void tell_all(const std::string& reason) noexcept;

  /// Says goodbye to the next rank, waits for the previous one's goodbye and stops; or returns when
  /// a rank is lost. All ranks must call it.
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
  mutable std::mutex mutex_;  // guards what follows
  std::string reason_;
  std::list<Notice> notices_;  // MPI may hold them until the end
  bool closing_ = false;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::thread thread_;

  // The watching thread's messages: members, as MPI may hold them when that thread has ended.
  MPI_Request sending_ = MPI_REQUEST_NULL;
  char beat_out_ = 0;
  char beat_in_ = 0;
  std::string notice_in_;
};

}  // namespace longspan::mpi
