// The communication ops of a program, for any backend: which rank sends what to whom. A peer's part
// that is not contiguous is packed into the op's workspace.
//
// A RankExchange moves the bytes and computes the sums. Each backend owns one: the CPU's calls are
// synchronous, a GPU's are enqueued. Used by one thread at a time. All ranks of a group make the
// same calls in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/comm/group.h"
#include "engine/runtime/backend.h"
#include "planner/program/program.h"

namespace longspan {

/// Below, n is the size of the group; the group contains this rank. Functions throw Error(failed)
/// if a rank is lost.
class RankExchange {
 public:
  virtual ~RankExchange() = default;

  /// Exchanges all messages at once, as Communicator::exchange(). Peers are ranks of the world.
  virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives) = 0;
  /// Messages between stages of a pipeline, as Communicator's of the same names.
  virtual void start_send(const Send& send, MessageTag tag) = 0;
  virtual void finish_send(int peer, MessageTag tag) = 0;
  virtual void receive(const Receive& receive, MessageTag tag) = 0;

  /// Copies device memory to the host, after all that was enqueued before.
  virtual void read(const std::byte* from, int64_t bytes, std::byte* to) = 0;

  /// As Backend's.
  virtual void abandon(const std::string& reason) noexcept = 0;
  virtual bool cancel() noexcept = 0;

  /// Gathers every rank's shard into out[0, n * shard bytes), in the order of the group. May be in
  /// place: `shard` at its position in `out`.
  virtual void all_gather(const Group& group, std::span<const std::byte> shard, std::byte* out) = 0;
  /// sum[0, count/n) = the sum over the members of their parts[index * count/n, ...), in elements
  /// of `type`. May be in place: `sum` at its position in `parts`. The op's workspace is scratch.
  virtual void reduce_scatter(const Group& group, DType type, const std::byte* parts, int64_t count,
                              std::byte* sum, std::span<std::byte> workspace) = 0;
  /// Replaces data[0, count) by the sum over the members, bitwise equal on all of them.
  virtual void all_reduce(const Group& group, float* data, int64_t count,
                          std::span<std::byte> workspace) = 0;
  virtual void all_reduce(const Group& group, double* data, int64_t count) = 0;

  /// Copies rows of `width` bytes; strides are in bytes. Source and destination do not overlap.
  virtual void copy_rows(const std::byte* from, int64_t from_stride, int64_t rows, int64_t width,
                         std::byte* to, int64_t to_stride) = 0;
  /// to += from, over rows of `width` floats; strides are in floats.
  virtual void add_rows(const float* from, int64_t from_stride, int64_t rows, int64_t width,
                        float* to, int64_t to_stride) = 0;
};

/// Runs an op that is_exchange(). Throws failed for any other kind, and for a tile of which a rank
/// gets more rows than the plan has memory for: on all ranks of the expert group.
void run_exchange(RankExchange& ranks, const Program& program, const Op& op,
                  const OperandPointers& operands);

}  // namespace longspan
