// Point-to-point messages between the ranks of a run: one rank's view of its world.
//
// A rank is a thread (local.h), a process (mpi.h) or the whole run (self.h). Exchanges within a
// stage of a pipeline are built on one call, exchange(), in which both sides of every message take
// part at once: the collectives (collectives.h) use it. Stages of a pipeline send each other tagged
// messages: the sender starts one, goes on, and finishes it later. Each transport is one small
// class that implements both. Buffers are in host memory; engine/cuda/device_ranks.h exchanges GPU
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

/// Tells the messages apart that a rank sends another: 0 <= tag <= kMostTags.
using MessageTag = int32_t;
inline constexpr MessageTag kMostTags = (1 << 21) - 1;

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

  /// Starts to send a tagged message and returns. Its buffer must stay as it is until finish_send()
  /// returns, or cancel_sends() true. REQUIRES: the calls for tagged messages come from one thread
  /// at a time, which may be another than that of exchange(); no other message of this tag to the
  /// peer is started and not finished. Throws as exchange() does.
  void start_send(const Send& send, MessageTag tag);
  /// Waits until the peer has received the message, or until nothing reads its buffer any more.
  /// Throws as exchange() does. REQUIRES: it was started.
  void finish_send(int peer, MessageTag tag);
  /// Waits for the message of this tag from a peer. Throws as exchange() does.
  void receive(const Receive& receive, MessageTag tag);
  /// Gives up all started messages, after an exchange has thrown `failed` or abandon(). Returns
  /// whether nothing uses the buffers of messages and exchanges any more: a transport that cannot
  /// take messages back may do so until the process ends.
  bool cancel_sends() noexcept { return do_cancel_sends(); }

  /// Bytes of payload sent to other ranks by completed exchanges and sends. Safe from any thread.
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
  /// Implement the calls for tagged messages, likewise. The second returns the message's bytes.
  virtual void do_start_send(const Send& send, MessageTag tag) = 0;
  virtual int64_t do_finish_send(int peer, MessageTag tag) = 0;
  virtual void do_receive(const Receive& receive, MessageTag tag) = 0;
  virtual bool do_cancel_sends() noexcept = 0;
  void check_peer(int peer, int64_t bytes, const char* what) const;

  int rank_;
  int size_;
  std::atomic<int64_t> bytes_sent_{0};
};

/// The error message that both ranks of a pair throw when the sizes of a message differ.
std::string describe_mismatch(int source, int64_t sent_bytes, int destination,
                              int64_t expected_bytes);

}  // namespace longspan
