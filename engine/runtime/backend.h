// What a backend must do: take the memory of its tiers, and run one op of a program on it.
//
// Two kinds of backend there are. One is done with an op when run() returns: the CPU. The other
// only puts the op on a queue of a device and returns at once; how its queues wait for each other,
// without the host waiting for any of them, is what DeviceQueues is for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/runtime/arena.h"
#include "planner/program/program.h"
#include "planner/simulate/timeline.h"

namespace longspan {

/// What changes from step to step without changing the program.
struct StepContext {
  int64_t step = 1;  // counts from 1
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0;
  double clip_norm = 0;  // 0: no clipping
  /// Fills out[0, count) with tokens [first, first + count) of the S + 1 tokens of a microbatch of
  /// this step. Called from the host stream's thread.
  std::function<void(int64_t microbatch, int64_t first, int64_t count, int32_t* out)> fill_tokens;
};

/// Operand i of an op: where its buffer begins; null where the operand is absent or in a file.
using OperandPointers = std::array<std::byte*, kMaxOperands>;

/// The queues of a device: one for each stream whose ops are put on a queue instead of being run by
/// the calling thread. A stream's functions are called from that stream's thread, concurrently for
/// different streams; begin(), finish() and span_of() from the thread that runs the step.
///
/// Op n of a queue is the one between the calls started(queue, n) and submitted(queue, n).
class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;
  /// Whether the ops of `stream` are put on a queue.
  virtual bool has(Stream stream) const = 0;

  /// A step begins, of at most `ops[s]` ops on stream s. Nothing is on any queue.
  virtual void begin(const std::array<int32_t, kStreamCount>& ops) = 0;
  virtual void started(Stream queue, int32_t n) = 0;
  virtual void submitted(Stream queue, int32_t n) = 0;

  /// Work put on `queue` from now on waits until op n of `other` is done; the host does not.
  /// REQUIRES: submitted(other, n) has returned.
  virtual void wait(Stream queue, Stream other, int32_t n) = 0;
  /// The calling thread waits until op n of `other` is done. REQUIRES: as wait().
  virtual void synchronize(Stream other, int32_t n) = 0;

  /// Waits until every queue is empty, and throws what went wrong on any of them since begin().
  virtual void finish() = 0;
  /// When op n of a queue ran, in seconds since begin(). REQUIRES: finish() has returned.
  virtual Span span_of(Stream queue, int32_t n) const = 0;
};

/// A backend runs ops of the compute, comm, host, h2d and d2h streams (file I/O is the runtime's
/// own). It is called from one thread per stream, concurrently for different streams, and must be
/// done with the op when it returns, unless it has a queue for the op's stream.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// Memory for the device or the host tier, zeroed. Throws no_fit if there is not that much.
  virtual std::unique_ptr<Arena> allocate(Tier tier, int64_t bytes);
  virtual void run(const Program& program, const Op& op, const OperandPointers& operands,
                   const StepContext& context) = 0;
  /// Payload that this rank has sent to others so far, by whatever carries it. 0 of one rank.
  virtual int64_t sent_bytes() const { return 0; }
  /// Null where every op is done when run() returns. Belongs to the backend.
  virtual DeviceQueues* queues() { return nullptr; }
};

}  // namespace longspan
