// Messages between the ranks of a run: one rank's view of the world it is part of.
//
// A rank is a thread (local.h), a process (mpi.h), or all there is (self.h). Whatever moves bytes
// between ranks is built on one call, exchange(): collectives.h on top, and below it one small
// class per way of moving them. Buffers are host memory; what lies in a GPU's moves by
// engine/cuda/device_ranks.h, which finds its peers through one of these. A communicator belongs to
// its world, which must outlive its users.
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

  /// Posts all messages at once and returns when all of them are done: what was sent may be
  /// overwritten, what was to be received is there. The messages from one rank to another match in
  /// the order of the calls and, within a call, of the spans; a message of 0 bytes is one too.
  /// REQUIRES: one thread at a time; receive buffers overlap nothing else in the call.
  /// Throws bad_input, before anything moves, for a peer outside the world or this rank itself
  /// (copy instead) and for negative sizes; `failed` if a receive is not of its send's size, on
  /// both ranks and naming both, if a rank is lost, and for errors of the transport. An exchange
  /// that has thrown `failed` is the last: every later one throws the same.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives);

  /// Payload sent to other ranks by the exchanges that have returned. Safe from any thread.
  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

  /// Says that this rank is lost: every rank that waits in an exchange, or enters one later, throws
  /// failed("rank 2 failed: <reason>") within about a second. The first rank to be lost is the one
  /// that others hear of. Safe from any thread.
  virtual void abandon(const std::string& reason) noexcept = 0;

  /// Throws what the next exchange would, if a rank is lost already: for those that wait for
  /// something else that a lost rank will never do. Safe from any thread.
  virtual void throw_if_lost() const = 0;

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  /// exchange() with arguments that are known to be right.
  virtual void move(std::span<const Send> sends, std::span<const Receive> receives) = 0;

  int rank_;
  int size_;
  std::atomic<int64_t> bytes_sent_{0};
};

/// What both ranks of a pair say when their ideas of a message differ.
std::string describe_mismatch(int source, int64_t sent_bytes, int destination,
                              int64_t expected_bytes);

}  // namespace longspan
