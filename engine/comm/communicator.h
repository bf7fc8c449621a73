// Point-to-point messages between the ranks of a run: one rank's view of its world.
//
// A rank is a thread (local.h), a process (mpi.h) or the whole run (self.h). Everything is built on
// one call, exchange(): the collectives (collectives.h) use it, and each transport is one small
// class that implements it. Buffers are in host memory; engine/cuda/device_ranks.h exchanges GPU
// memory, and finds its peers through a Communicator. A communicator belongs to its world, which
// must outlive its users.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace longspan {

struct Send {
  int peer;               // rank in the world
  const std::byte* data;  // may be null if bytes is 0
  int64_t bytes;
};

struct Receive {
  int peer;
  std::byte* data;
  int64_t bytes;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::string_view name() const = 0;  ///< "self", "local" or "mpi"

  /// Posts all messages at once and returns when all of them are done: sent buffers may be
  /// overwritten, receive buffers are filled. The messages from one rank to another match in the
  /// order of the calls and, within a call, of the spans; a message of 0 bytes counts too.
  /// REQUIRES: one thread at a time; receive buffers overlap nothing else in the call. Throws
  /// bad_input, before anything is sent, for a peer outside the world, for this rank itself (copy
  /// instead) and for negative sizes. Throws `failed` if a receive and its send differ in size (on
  /// both ranks, naming both), if a rank is lost, and for errors of the transport. After an
  /// exchange has thrown `failed`, every later one throws the same.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives);

  /// Bytes of payload sent to other ranks by completed exchanges. Safe from any thread.
  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

  /// Declares this rank lost: every rank that waits in an exchange, or enters one later, throws
  /// failed("rank 2 failed: <reason>") within about a second. Only the first lost rank is reported.
  /// Safe from any thread.
  virtual void abandon(const std::string& reason) noexcept = 0;

  /// Throws the error of the next exchange if a rank is already lost. For callers that wait for a
  /// lost rank by other means than exchange(). Safe from any thread.
  virtual void throw_if_lost() const = 0;

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  /// Implements exchange(). The arguments have been checked.
  virtual void move(std::span<const Send> sends, std::span<const Receive> receives) = 0;

  int rank_;
  int size_;
  std::atomic<int64_t> bytes_sent_{0};
};

/// The error message that both ranks of a pair throw when the sizes of a message differ.
std::string describe_mismatch(int source, int64_t sent_bytes, int destination,
                              int64_t expected_bytes);

}  // namespace longspan
