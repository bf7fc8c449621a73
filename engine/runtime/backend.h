// The interface of a backend, which allocates the memory of its tiers and runs ops of a program.
//
// There are two kinds of backend. A synchronous one (CPU) has completed an op when run() returns.
// An asynchronous one (CUDA) enqueues the op on a queue of the device and returns at once; through
// DeviceQueues its queues wait for each other without blocking the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/runtime/arena.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace longspan {

/// The inputs of a step that vary between steps of one program.
struct StepContext {
  int64_t step = 1;  // counts from 1
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0;
  double clip_norm = 0;    // 0: no clipping
  double norm_before = 0;  // of the gradients of the step before; 0: there was none
  /// The factor of a token's loss: 1 / the number of labels in the step, on all ranks. 0: all
  /// tokens have labels.
  double loss_scale = 0;
  /// Fills out[0, count) with tokens [first, first + count) of the S + 1 tokens of a sequence of
  /// this step on this replica: those of its first microbatch, of the second, .... Called on the
  /// host stream's thread.
  std::function<void(int64_t sequence, int64_t first, int64_t count, int32_t* out)> fill_tokens;
  /// Takes what a forward alone computes: the log-probabilities of the labels of tokens [first,
  /// first + count) of a sequence. Called on the host stream's thread. May be empty.
  std::function<void(int64_t sequence, int64_t first, int64_t count, const float* values)>
      take_log_probs;
  /// Where the documents of a sequence's S + 1 tokens begin; valid until the next call. Empty:
  /// sequences have none. Called like fill_tokens.
  std::function<std::span<const int32_t>(int64_t sequence)> documents;
};

/// Element i is the start of the buffer of operand i; null if the operand is absent or in a file.
using OperandPointers = std::array<std::byte*, kMaxOperands>;

/// The queues of a device: one for each stream whose ops are enqueued instead of run by the calling
/// thread. A stream's functions are called from that stream's thread, concurrently for different
/// streams; begin(), finish() and span_of() from the thread that runs the step.
///
/// Op n of a queue is the work enqueued between started(queue, n) and submitted(queue, n).
class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;
  /// Whether the ops of `stream` are enqueued.
  virtual bool has(Stream stream) const = 0;

  /// Begins a step with at most `ops[s]` ops on stream s. REQUIRES: all queues are empty.
  virtual void begin(const std::array<int32_t, kStreamCount>& ops) = 0;
  virtual void started(Stream queue, int32_t n) = 0;
  virtual void submitted(Stream queue, int32_t n) = 0;

  /// Makes work enqueued on `queue` from now on wait for op n of `other`. Does not block the host.
  /// REQUIRES: submitted(other, n) has returned.
  virtual void wait(Stream queue, Stream other, int32_t n) = 0;
  /// Blocks the calling thread until op n of `other` is done. REQUIRES: as wait().
  virtual void synchronize(Stream other, int32_t n) = 0;

  /// Waits until every queue is empty. Throws the error of any of them since begin().
  virtual void finish() = 0;
  /// Returns when op n of a queue ran, in seconds since begin(). REQUIRES: finish() has returned.
  virtual Span span_of(Stream queue, int32_t n) const = 0;
};

/// Runs the ops of the compute, comm, host, h2d and d2h streams; the executor does file I/O itself.
/// Called from one thread per stream, concurrently for different streams. Must complete an op
/// before returning, unless it has a queue for the op's stream.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// Returns zeroed memory for the device or the host tier. Throws no_fit if too little is left.
  virtual std::unique_ptr<Arena> allocate(Tier tier, int64_t bytes);
  virtual void run(const Program& program, const Op& op, const OperandPointers& operands,
                   const StepContext& context) = 0;
  /// Tells the other ranks that this one's step has failed, so that no rank waits for another in
  /// run(). From any thread, also while others are in run().
  virtual void abandon(const std::string& /*reason*/) noexcept {}
  /// Ends what a failed step has started and not finished. Returns whether no message uses its
  /// memory any more; if not, the memory must stay until the process ends. REQUIRES: no thread is
  /// in run().
  virtual bool cancel() noexcept { return true; }
  /// Payload in bytes that this rank has sent to others so far, over any transport; 0 for one rank.
  virtual int64_t sent_bytes() const { return 0; }
  /// The device's queues, owned by the backend; null if run() is synchronous for every op.
  virtual DeviceQueues* queues() { return nullptr; }
};

}  // namespace longspan
