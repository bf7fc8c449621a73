// What an op of a program means, for any backend: which block it is, on which rows of which
// buffers. The blocks themselves, and what their numbers are, belong to the backend.
//
// A backend's blocks are a class with one function per op kind, named and ordered as in
// engine/cpu/blocks.h, which also says what each of them computes. Element is what activations and
// parameters are held in; where that is not float, these are float all the same: lse, delta, o_sum,
// dq, dk, dv, gradients of parameters, and the optimizer's states. o_sum is given to
// attention_forward only there (see OpKind).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/runtime/backend.h"
#include "engine/runtime/heads.h"
#include "models/model_spec.h"
#include "models/tensor_slices.h"
#include "planner/program/program.h"

namespace longspan {

/// An op with its operands resolved to typed pointers at the op's own rows.
class BoundOp {
 public:
  BoundOp(const Program& program, const Op& op, const OperandPointers& pointers)
      : program_(program), op_(op), pointers_(pointers) {}

  const OpShape& shape() const { return program_.shapes[op_.shape]; }
  /// Start of operand i, whatever it is.
  template <class T>
  T* whole(int i) const {
    return reinterpret_cast<T*>(pointers_[i]);
  }
  /// Operand i at the first row of a chunk.
  template <class T>
  T* at(int i, int64_t chunk) const {
    return reinterpret_cast<T*>(pointers_[i] + program_.chunk_offset_bytes(op_.operands[i], chunk));
  }
  /// Operand i of attention at the chunk and head group of the op; null where it is absent.
  template <class T>
  T* heads(int i) const {
    if (pointers_[i] == nullptr) return nullptr;
    return reinterpret_cast<T*>(pointers_[i] +
                                program_.chunk_offset_bytes(op_.operands[i], op_.index) +
                                program_.group_offset_bytes(op_.operands[i], op_.head_group));
  }
  /// Elements from one row of operand i to the next; 0 where it is absent.
  template <class T>
  int64_t row(int i) const {
    if (op_.operands[i] < 0) return 0;
    return program_.bytes.row[static_cast<int>(program_.buffers[op_.operands[i]].tensor)] /
           static_cast<int64_t>(sizeof(T));
  }
  std::byte* pointer(int i) const { return pointers_[i]; }

 private:
  const Program& program_;
  const Op& op_;
  const OperandPointers& pointers_;
};

/// A copy between device and host. Between units of different extent the smaller one moves.
struct CopyRange {
  int64_t from_bytes = 0, to_bytes = 0;  // where it begins in each
  int64_t bytes = 0;
};
CopyRange copy_range(const Program& program, const Op& op);

/// What backends work out once about the programs they will run.
class StepShape {
 public:
  explicit StepShape(const Program& program);

  const ModelSpec& model() const { return model_; }      ///< of this rank's layers
  const ModelSpec& attention() const { return share_; }  ///< as this rank's attention sees it
  const std::vector<ParameterUnit>& units() const { return units_; }

  /// The heads of a group among all: those that each rank of the Ulysses group will attend with.
  HeadGroup group_of(const Program& program, int64_t group) const;

  /// The parts of what this rank holds of a unit's gradients, in elements, whose squares it adds
  /// to the gradient norm: what a tensor group holds alike counts on its first rank.
  std::vector<UnitRange> counted(const Program& program, const Op& op) const;

  /// Of each tensor of an adamw op's unit, the part that lies in this rank's shard.
  struct Update {
    int64_t first, count;  // elements of the shard
    bool decays;
  };
  std::vector<Update> updates(const Program& program, const Op& op) const;

 private:
  ModelSpec model_, share_;
  int64_t kv_groups_;
  std::vector<ParameterUnit> units_;
  std::array<std::vector<UnitRange>, 3> counted_;  // embedding, layer, head unit
};

/// Where a microbatch's inputs and labels go, block by block, in the order in which this rank holds
/// its tokens.
void fill_tokens(const Program& program, const Op& op, int32_t* tokens, const StepContext& context);

/// Runs an op of the transformer's, or `add` or `zero`. False for kinds that are none of these.
template <class Element, class Blocks>
bool run_block(Blocks& blocks, const StepShape& step, const Program& p, const Op& op,
               const OperandPointers& pointers) {
  using E = Element;
  using F = float;
  const BoundOp b(p, op, pointers);
  const Strategy& s = p.strategy;
  const ModelSpec& model = step.model();
  const int64_t own = p.lengths.own_block(), own_run = p.lengths.own_run();
  const int64_t block = p.lengths.dense_block(), own_chunk = p.lengths.own_chunk();
  const int64_t chunk = p.lengths.chunk, index = op.index;
  // Positions matter to attention only where the mask cuts: in the chunk that is the query's own.
  const int64_t kv_rows = b.shape().kv_chunks * chunk;
  const int64_t query = b.shape().diagonal ? kv_rows - chunk : kv_rows;
  const auto tile = [](int64_t wanted, int64_t rows) {
    return wanted > 0 ? std::min(wanted, rows) : rows;
  };

  switch (op.kind) {
    case OpKind::embed_forward:
      for (int64_t row = 0, run = index * own / own_run; row < own; row += own_run, ++run) {
        blocks.embed_forward(b.whole<E>(0), b.whole<int32_t>(1) + row, own_run,
                             first_token_of_run(p, run), b.whole<E>(2) + row * model.hidden);
      }
      return true;
    case OpKind::norm_forward:
      blocks.norm_forward(b.whole<E>(0), b.shape().of_mlp, b.whole<E>(1), own, b.whole<E>(2));
      return true;
    case OpKind::qkv_forward:
      blocks.qkv_forward(b.whole<E>(0), b.at<E>(1, index), b.shape().normed, own_chunk,
                         first_own_token(p, index), tile(s.projection_tile, own_chunk),
                         b.heads<E>(2), b.heads<E>(3), b.heads<E>(4), b.whole<E>(5),
                         step.group_of(p, op.head_group));
      return true;
    case OpKind::attention_forward:
      blocks.attention_forward(b.at<E>(0, index), b.at<E>(1, op.kv_first), b.at<E>(2, op.kv_first),
                               query, chunk, 0, kv_rows, b.shape().first, b.heads<E>(3),
                               b.heads<F>(4), b.whole<E>(5), b.heads<F>(6),
                               {b.row<E>(3), b.row<F>(4)});
      return true;
    case OpKind::out_forward:
      blocks.out_forward(b.whole<E>(0), b.whole<E>(1), b.whole<E>(2), block, b.whole<E>(3));
      return true;
    case OpKind::mlp_forward:
      blocks.mlp_forward(b.whole<E>(0), b.whole<E>(1), block, tile(s.mlp_tile, block),
                         b.whole<E>(2), b.whole<E>(4), b.whole<E>(3), b.shape().partial);
      return true;
    case OpKind::residual_forward:
      blocks.residual_forward(b.whole<E>(0), b.shape().of_mlp, b.whole<E>(1), b.whole<E>(2), own,
                              b.whole<E>(3));
      return true;
    case OpKind::loss: {
      // Where the output matrix is tied it is the embedding's token table, the first tensor there;
      // otherwise it is the last tensor of the head unit.
      const int64_t behind_norm =
          model.tied_embeddings ? 0 : (model.norm == Norm::layernorm ? 2 : 1) * model.hidden;
      blocks.loss_forward_backward(b.whole<E>(0), b.whole<E>(1) + behind_norm, b.whole<E>(2),
                                   b.whole<int32_t>(3) + own, own, tile(s.loss_tile, own),
                                   loss_scale(p), b.whole<double>(4), b.whole<E>(5), b.whole<F>(6),
                                   b.whole<F>(7) + behind_norm, b.whole<E>(8));
      return true;
    }
    case OpKind::mlp_backward:
      blocks.mlp_backward(b.whole<E>(0), b.whole<E>(1), b.whole<E>(5), block,
                          tile(s.mlp_tile, block), b.whole<E>(2), b.whole<F>(3), b.whole<E>(4),
                          b.shape().partial);
      return true;
    case OpKind::out_backward:
      blocks.out_backward(b.whole<E>(0), b.whole<E>(1), b.whole<E>(2), block, b.whole<E>(3),
                          b.whole<F>(4), b.whole<F>(5), b.shape().partial);
      return true;
    case OpKind::attention_backward:
      blocks.attention_backward(b.at<E>(0, index), b.at<E>(1, op.kv_first), b.at<E>(2, op.kv_first),
                                b.heads<E>(3), b.heads<F>(4), b.heads<F>(5), query, chunk, 0,
                                kv_rows, op.first_dq, b.at<F>(6, index), op.first_dkv,
                                b.at<F>(7, op.kv_first), b.at<F>(8, op.kv_first), b.whole<E>(9),
                                {b.row<E>(3), b.row<F>(4), b.row<F>(5)});
      return true;
    case OpKind::qkv_backward:
      blocks.qkv_backward(b.whole<E>(0), b.at<E>(1, index), b.shape().normed, own_chunk,
                          first_own_token(p, index), tile(s.projection_tile, own_chunk),
                          b.heads<F>(2), b.heads<F>(3), b.heads<F>(4), b.at<E>(5, index),
                          b.whole<F>(6), b.whole<E>(7), step.group_of(p, op.head_group));
      return true;
    case OpKind::norm_backward:
      blocks.norm_backward(b.whole<E>(0), b.shape().of_mlp, b.whole<E>(1), b.whole<E>(2), own,
                           b.whole<E>(3), b.whole<F>(4));
      return true;
    case OpKind::residual_backward:
      blocks.residual_backward(b.shape().of_mlp, b.whole<E>(0), own, b.whole<F>(1));
      return true;
    case OpKind::embed_backward:
      for (int64_t row = 0, run = index * own / own_run; row < own; row += own_run, ++run) {
        blocks.embed_backward(b.whole<int32_t>(0) + row, b.whole<E>(1) + row * model.hidden,
                              own_run, first_token_of_run(p, run), b.whole<F>(2));
      }
      return true;
    case OpKind::add:
      blocks.add(b.whole<F>(1), p.bytes_of(op.operands[0]) / 4, b.whole<F>(0));
      return true;
    case OpKind::zero:
      blocks.zero(b.pointer(0), p.bytes_of(op.operands[0]));
      return true;
    default:
      return false;
  }
}

}  // namespace longspan
