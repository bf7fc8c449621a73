// One op of a step program: its kind, its shape, its operands, the stream it runs on.
//
// Each kind has one row in op_table.h: its streams, and its operands' names, accesses and allowed
// tensors. Lowering emits ops that follow their rows, and backends find operands by name.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "planner/program/tensor.h"

namespace longspan {

/// Queues of a rank. Ops of one stream run in list order; streams run concurrently.
enum class Stream : uint8_t { compute, h2d, d2h, io, host, comm };
inline constexpr int kStreamCount = 6;
std::string_view name_of(Stream);

/// Kinds of ops, about in the order of a step. Code reads properties of a kind from its row, never
/// from this order.
enum class OpKind : uint8_t {
  batch,
  documents,
  embed_forward,
  norm_forward,
  qkv_forward,
  attention_forward,
  merge_outputs,
  out_forward,
  mlp_forward,
  route,
  dispatch,
  shared_forward,
  experts_forward,
  collect,
  combine_forward,
  residual_forward,
  report,
  balance,
  loss,
  final_norm_forward,
  vocabulary_forward,
  vocabulary_merge,
  vocabulary_combine,
  vocabulary_backward,
  final_norm_backward,
  mlp_backward,
  mlp_backward_input,
  mlp_backward_weight,
  shared_backward,
  experts_backward,
  combine_backward,
  out_backward,
  out_backward_input,
  out_backward_weight,
  attention_backward,
  qkv_backward,
  qkv_backward_input,
  qkv_backward_weight,
  norm_backward,
  residual_backward,
  select_rows,
  restore_rows,
  embed_backward,
  dequantize,
  add,
  zero,
  sum_of_squares,
  adamw,
  copy_h2d,
  copy_d2h,
  io_read,
  io_write,
  all_to_all,
  ring_shift,
  all_gather,
  reduce_scatter,
  all_reduce,
  sum_replicated,
  send,
  sent,
  receive,
  count
};
inline constexpr int kOpKindCount = static_cast<int>(OpKind::count);
std::string_view name_of(OpKind);

/// Whether it communicates with other ranks.
bool is_exchange(OpKind);
/// Whether it is part of a message between stages of a pipeline.
bool is_message(OpKind);
/// Whether it moves a buffer from one tier to another.
bool is_copy(OpKind);
/// Whether it multiplies activations by a unit's weights.
bool is_product(OpKind);
/// Whether it is attention, forward or backward.
bool is_attention(OpKind);
/// Whether it works on any tensor, named by OpShape::tensor.
bool names_tensor(OpKind);

using BufferId = int32_t;
inline constexpr int kMaxOperands = 13;
inline constexpr int kExchanged = 3;  // most tensors of one all_to_all

/// All that an op's cost depends on; ops of equal shape share one entry.
struct OpShape {
  OpKind kind = OpKind::batch;
  Tensor tensor = Tensor::count;  // if names_tensor(kind): the tensor of the unit
  int32_t layer_kind = 0;  // Program::kind_of_layer(); of an operation on a state: its unit's
  int32_t kv_chunks = 0;   // attention, add, messages of attention: chunks of keys ...
  bool diagonal = false;   // ... of which the last is the query's own
  int32_t distance = 0;    // attention without the query's own chunk: chunks from the first of
                           // the keys to it, if a window hides some of them; else 0
  bool first = false;  // attention, vocabulary_merge, _combine, combine_backward: no earlier result
  bool into_sum = false;     // attention_forward: o_sum is given
  bool saves_inner = false;  // mlp: inner is written (forward) or given (backward)
  bool given_inner = false;  // mlp_forward: inner is read
  bool normed = false;       // qkv: the norm is a separate op
  bool to_heads = false;     // all_to_all: from tokens to heads
  bool of_mlp = false;       // norm, residual: the MLP's, not attention's
  bool partial = false;  // out, mlp: one rank's part of a sum over its tensor group; neither norms,
                         // residual nor the bias that is added once
  bool queries_only = false;    // qkv, all_to_all: for a head group without its K,V
  bool on_host = false;         // adamw: on the host's processor and memory
  bool for_input = false;       // vocabulary_forward, _backward: with the gradient of its input
  bool with_gradients = false;  // route, dispatch, collect: of the backward
  bool last_tile = false;       // route .. combine: the block's last tile, if it is shorter
  bool of_pipeline = false;     // all_reduce: over the stages of a pipeline, not within one; of
                                // gradients: over its ends
  bool operator==(const OpShape&) const = default;
};

struct Op {
  OpKind kind = OpKind::batch;
  Stream stream = Stream::compute;
  uint8_t operand_count = 0;
  bool first_dq = false;   // attention_backward: dq is written, not added to
  bool first_dkv = false;  // dk, dv are written, not added to
  uint8_t level = 0;       // send, sent, receive: place in TokenShares of its stages' border
  uint16_t reads = 0;      // bit i: operand i is read
  uint16_t writes = 0;     // bit i: operand i is written
  int32_t shape = 0;       // index into Program::shapes
  int32_t layer = -1;
  int32_t index = 0;     // its block, chunk (of this ring position) or parameter unit; route ..
                         // combine: its tile, of those of all blocks
  int32_t kv_first = 0;  // attention: first chunk of keys
  int32_t microbatch = 0;
  int32_t head_group = 0;   // of attention and the ops around it
  int32_t from_stage = -1;  // send, sent, receive: the stage whose residual or gradient it is; -1:
                            // it is of a cut vocabulary, or ...
  int32_t serial = -1;      // ... of shared attention: its number among the messages of this rank
                            // to, or from, the other
  int32_t peer = -1;        // likewise: the place of the other stage's mesh in the pipeline
  int32_t action = -1;      // its place in Program::actions
  std::array<BufferId, kMaxOperands> operands{};  // -1: absent

  bool has(int operand) const { return operand < operand_count && operands[operand] >= 0; }
};

}  // namespace longspan
