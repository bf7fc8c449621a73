// The ops of a program that talk to other ranks, for any backend: who sends what to whom, packed
// into the op's workspace where a peer's part does not lie in one piece.
//
// How bytes move and sums are made is a RankExchange, which each backend has of its own: the CPU's
// is done when a call returns, a GPU's puts it on a queue. It belongs to its backend and is used by
// one thread at a time; all ranks of a group make the same calls in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/comm/communicator.h"
#include "engine/comm/group.h"
#include "engine/runtime/backend.h"
#include "planner/program/program.h"

namespace longspan {

/// Below, n is the size of the group, which holds this rank. Functions throw Error(failed) if a
/// rank is lost meanwhile.
class RankExchange {
 public:
  virtual ~RankExchange() = default;

  /// All messages at once, as Communicator::exchange(). Peers are ranks of the world.
  virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives) = 0;
  /// Every rank's shard to out[0, n * shard bytes), in the order of the group. The shard may lie in
  /// its own place there.
  virtual void all_gather(const Group& group, std::span<const std::byte> shard, std::byte* out) = 0;
  /// sum[0, count/n) = the sum over the members of their parts[index * count/n, ...), of elements
  /// of `type`. sum may be its own place in `parts`. The workspace is the op's, to be used or not.
  virtual void reduce_scatter(const Group& group, DType type, const std::byte* parts, int64_t count,
                              std::byte* sum, std::span<std::byte> workspace) = 0;
  /// data[0, count) becomes the sum over the members, the same bits on all of them.
  virtual void all_reduce(const Group& group, float* data, int64_t count,
                          std::span<std::byte> workspace) = 0;
  virtual void all_reduce(const Group& group, double* scalar) = 0;

  /// Rows of `width` bytes, which begin a stride apart. Neither overlaps the other.
  virtual void copy_rows(const std::byte* from, int64_t from_stride, int64_t rows, int64_t width,
                         std::byte* to, int64_t to_stride) = 0;
  /// to += from: rows of `width` floats, which begin a stride (in floats) apart.
  virtual void add_rows(const float* from, int64_t from_stride, int64_t rows, int64_t width,
                        float* to, int64_t to_stride) = 0;
};

/// Runs an op that is_exchange(). Throws failed for a kind that no exchange here is of.
void run_exchange(RankExchange& ranks, const Program& program, const Op& op,
                  const OperandPointers& operands);

}  // namespace longspan
