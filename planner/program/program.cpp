#include "planner/program/program.h"

#include <fmt/format.h>

namespace longspan {

std::string_view name_of(Stream stream) {
  static constexpr std::string_view names[] = {"compute", "h2d", "d2h", "io", "host", "comm"};
  return names[static_cast<int>(stream)];
}

std::string_view name_of(OpKind kind) {
  static constexpr std::string_view names[] = {"batch",
                                               "embed_forward",
                                               "norm_forward",
                                               "qkv_forward",
                                               "attention_forward",
                                               "out_forward",
                                               "mlp_forward",
                                               "loss",
                                               "mlp_backward",
                                               "out_backward",
                                               "attention_backward",
                                               "qkv_backward",
                                               "norm_backward",
                                               "embed_backward",
                                               "add",
                                               "zero",
                                               "sum_of_squares",
                                               "adamw",
                                               "copy_h2d",
                                               "copy_d2h",
                                               "io_read",
                                               "io_write",
                                               "all_to_all",
                                               "ring_shift",
                                               "all_gather",
                                               "reduce_scatter",
                                               "all_reduce"};
  static_assert(std::size(names) == kOpKindCount);
  return names[static_cast<int>(kind)];
}

int64_t Program::shard_offset_bytes(BufferId id) const {
  const Tensor tensor = buffers[id].tensor;
  if (strategy.parallel.shards() == 1) return 0;
  const bool whole = tensor < Tensor::master_embedding ||
                     (tensor >= Tensor::grads_embedding && tensor <= Tensor::grads_head);
  return whole ? place.rank * (bytes[tensor] / strategy.parallel.shards()) : 0;
}

int64_t Program::chunk_offset_bytes(BufferId id, int64_t chunk) const {
  const Buffer& buffer = buffers[id];
  const int64_t unit_rows = lengths.rows(buffer.tensor);
  return (chunk * lengths.chunk_rows(buffer.tensor) - buffer.index * unit_rows) *
         bytes.row[static_cast<int>(buffer.tensor)];
}

int64_t Program::group_offset_bytes(BufferId id, int64_t group) const {
  const Tensor tensor = buffers[id].tensor;
  if (!holds_all_groups(tensor)) return 0;
  const int64_t shares = is_own(tensor) ? lengths.head_shares() : lengths.head_groups;
  return group * (bytes.row[static_cast<int>(tensor)] / shares);
}

int64_t first_own_token(const Program& p, int64_t chunk) {
  const int64_t global = global_chunk(p.strategy.parallel, p.place.ring, chunk);
  return global * p.lengths.chunk + p.place.ulysses * p.lengths.own_chunk();
}

double loss_scale(const Program& p) {
  return 1.0 /
         (static_cast<double>(p.lengths.sequence * p.strategy.parallel.ring) *
          static_cast<double>(p.micro_batches) * static_cast<double>(p.strategy.parallel.data));
}

int64_t sent_bytes(const Program& p, const Op& op) {
  const Parallel& parallel = p.strategy.parallel;
  const int64_t ranks = parallel.ranks();
  const auto operand_bytes = [&](int i) { return p.bytes_of(op.operands[i]); };
  switch (op.kind) {
    case OpKind::all_to_all: {
      // To every other rank: this rank's tokens of its heads, or its tokens of ours.
      int64_t row_bytes = 0;
      for (int i = 0; i < kExchanged; ++i) {
        const BufferId heads = op.operands[p.shapes[op.shape].to_heads ? kExchanged + i : i];
        if (heads >= 0) row_bytes += p.bytes.row[static_cast<int>(p.buffers[heads].tensor)];
      }
      return (parallel.ulysses - 1) * p.lengths.own_chunk() * row_bytes;
    }
    case OpKind::ring_shift:
      return operand_bytes(0) + operand_bytes(1);
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
      return (ranks - 1) * p.bytes[p.shapes[op.shape].tensor];
    case OpKind::all_reduce: {
      if (op.operands[0] == p.loss) {  // scalars: everyone's to everyone
        return (ranks - 1) * 8 * (op.operands[1] >= 0 ? 2 : 1);
      }
      const int64_t elements = operand_bytes(0) / 4;
      const int64_t own = elements * (p.place.rank + 1) / ranks - elements * p.place.rank / ranks;
      return 4 * (elements - own + (ranks - 1) * own);
    }
    default:
      return 0;
  }
}

std::string describe(const Program& program, const Op& op) {
  std::string text(name_of(op.kind));
  const OpShape& shape = program.shapes[op.shape];
  if (op.kind >= OpKind::zero) text += fmt::format(" {}", name_of(shape.tensor));
  if (op.layer >= 0) text += fmt::format(" L{}", op.layer);
  text += fmt::format(" {}", op.index);
  if (op.head_group > 0) text += fmt::format(" h{}", op.head_group);
  if (shape.kv_chunks > 0) {
    text += fmt::format(" kv{}", op.kv_first);
    if (shape.kv_chunks > 1) text += fmt::format("..{}", op.kv_first + shape.kv_chunks - 1);
  }
  return text;
}

}  // namespace longspan
