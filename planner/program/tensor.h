// The buffers of a step program: what kinds of tensor exist, what one unit of each holds, and how
// many bytes that is.
//
// A buffer is one unit of a tensor: the queries of one chunk, the residual of one block, the
// parameters of one layer. Its bytes depend only on the tensor, so a program is the same list for
// any sizes of the same shape, and sizes are a separate table.
//
// Around attention a rank of a Ulysses group holds all tokens of U's share of the heads, elsewhere
// its own tokens with all heads; "_own" and "_heads" tell the two forms of one tensor apart.
// Where heads are taken in groups, what is per chunk, and K,V with their gradients, holds the heads
// of one group; what is per block those of all.
//
// A rank of a tensor group holds the residual and what the norms make of it for its own tokens, and
// everything between for all tokens: there H, Hkv and W are its share of the model's (U is then 1).
//
// Legend: S a ring position's share of the sequence, b block, c chunk (tokens); U Ulysses degree, P
// = U times the head groups, T tensor degree; d hidden, A = H*D, G = Hkv*D, H heads, W inner width
// of the MLP, V vocabulary. G/P is the width of at least one head.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "models/model_spec.h"
#include "planner/strategy/strategy.h"

namespace longspan {

enum class DType : uint8_t { float32, bfloat16 };
inline int64_t size_of(DType dtype) { return dtype == DType::float32 ? 4 : 2; }
std::string_view name_of(DType);

enum class Tensor : uint8_t {
  // parameters and their states; three consecutive kinds each: embedding, layer, head unit
  params_embedding,
  params_layer,
  params_head,  // what the kernels read, in compute dtype
  master_embedding,
  master_layer,
  master_head,  // float32 master copy, where compute is bfloat16
  grads_embedding,
  grads_layer,
  grads_head,  // float32
  adam_m_embedding,
  adam_m_layer,
  adam_m_head,  // float32
  adam_v_embedding,
  adam_v_layer,
  adam_v_head,  // float32
  params_embedding_shard,
  params_layer_shard,
  params_head_shard,  // one rank's shard under ZeRO
  grads_embedding_shard,
  grads_layer_shard,
  grads_head_shard,
  // per sequence
  tokens_all,  // int32 [S/b, 2, b/UT]: inputs and labels of each block
  k_all,
  v_all,  // [S, G/P]
  dk_all,
  dv_all,  // float32 [S, G/P]
  // per block
  tokens,  // int32 [2, b/UT]
  x,
  y,
  dx,  // [b/UT, d] residual in, residual after attention, gradient of either
  h,
  dh,  // [b/U, d] normed, its gradient
  h_own,
  sum_own,  // [b/T, d] normed; the sum of all ranks' parts
  part,
  dx_all,  // [b, d] this rank's part of such a sum; dx of all tokens
  o,
  d_o,        // [b/U, A]
  delta_own,  // float32 [b/U, H]
  lse,
  delta,  // float32 [b, H/U]
  inner,  // [b/U, W]
  // per chunk
  q,  // [c, A/P]
  k,
  v,   // [c, G/P]
  dq,  // float32 [c, A/P]
  dk,
  dv,  // float32 [c, G/P]
  o_heads,
  d_o_heads,    // [c, A/P]
  o_sum,        // float32 [c, A/P], where sums_attention()
  delta_heads,  // float32 [c, H/P]
  q_own,        // [c/U, A*U/P]
  k_own,
  v_own,   // [c/U, G*U/P], at most G
  dq_own,  // float32 [c/U, A*U/P]
  dk_own,
  dv_own,  // float32 [c/U, G*U/P], at most G
  // workspaces of ops, one kind each
  ws_qkv_forward,
  ws_attention_forward,
  ws_mlp_forward,
  ws_mlp_forward_saving,
  ws_loss,
  ws_mlp_backward,
  ws_mlp_backward_saved,
  ws_attention_backward,
  ws_qkv_backward,
  ws_exchange,          // staging of an all-to-all of q, k, v or their gradients
  ws_exchange_queries,  // of one without K,V: q, o, d_o with delta, or dq
  ws_reduce,            // pieces of other ranks on their way into a sum
  ws_scatter,           // likewise, of activations in a tensor group
  ws_replicated,        // gradients of what a tensor group holds alike, and pieces of other ranks
  // scalars
  loss,
  grad_norm,  // float64
  count
};
inline constexpr int kTensorCount = static_cast<int>(Tensor::count);
std::string_view name_of(Tensor);

/// Rows one unit of the tensor covers.
enum class Rows : uint8_t { none, sequence, block, chunk };
Rows rows_of(Tensor);

/// True for tensors of a rank's own tokens (1/U of the rows); the others that have rows hold all
/// rows of 1/U of the heads.
bool is_own(Tensor);
/// True for tensors that a rank of a tensor group holds for its own tokens (1/T of the rows).
bool is_scattered(Tensor);
/// True for attention's tensors that hold the heads of all head groups, side by side.
bool holds_all_groups(Tensor);
/// Parameters, gradients and optimizer state, whole or a shard.
bool is_state(Tensor);
/// What kernels read of the parameters, in compute dtype; whole or a shard.
bool is_parameters(Tensor);
/// Gradients of parameters, whole or a shard.
bool is_gradients(Tensor);
/// One rank's shard under ZeRO.
bool is_shard(Tensor);
/// Scratch memory of an op, which holds nothing before it and nothing after it.
bool is_workspace(Tensor);

using UnitKind = ParameterUnit::Kind;
/// The tensor of a state for a kind of unit. REQUIRES: `first` is the state's embedding tensor.
Tensor unit_tensor(Tensor first, UnitKind kind);

/// The lengths a program is built for: one ring position's.
struct Lengths {
  int64_t local_sequence = 0;  // S
  int64_t block = 0;           // b
  int64_t chunk = 0;           // c
  int64_t ulysses = 1;         // U
  int64_t tensor = 1;          // T
  int64_t head_groups = 1;

  int64_t chunks() const { return local_sequence / chunk; }
  int64_t blocks() const { return local_sequence / block; }
  /// Rows that a rank projects at once, out of a chunk and out of a block.
  int64_t own_chunk() const { return chunk / ulysses; }
  int64_t dense_block() const { return block / ulysses; }
  /// Rows of a block's residual on a rank, and how many of them follow each other in the sequence.
  int64_t own_block() const { return dense_block() / tensor; }
  int64_t own_run() const { return tensor > 1 ? own_block() : own_chunk(); }
  /// Parts the heads are cut into: one is what a rank attends with at a time.
  int64_t head_shares() const { return ulysses * head_groups; }
  /// Rows of one unit of a tensor; 0 for tensors without rows.
  int64_t rows(Tensor t) const;
  /// Rows that one chunk has in a tensor.
  int64_t chunk_rows(Tensor t) const { return is_own(t) ? own_chunk() : chunk; }
};
Lengths lengths_of(const Strategy& strategy, int64_t sequence);

/// True where the output of a query chunk may come from several ops, as keys stream or travel
/// around a ring, and activations are narrower than the float32 that it is then summed in (o_sum).
bool sums_attention(const Strategy& strategy, const Lengths& lengths, DType dtype);

/// Heads of one head group, those of all ranks together: what a rank projects of its own tokens.
struct GroupHeads {
  int64_t q = 0, kv = 0;
};
GroupHeads group_heads(const ModelSpec& model, const Lengths& lengths);
/// How often the K,V heads change while the head groups pass: neighbouring groups share them where
/// a rank has fewer K,V heads than groups.
int64_t kv_groups(const ModelSpec& model, const Lengths& lengths);

/// Bytes of one unit of every tensor.
struct TensorBytes {
  std::array<int64_t, kTensorCount> unit{};
  std::array<int64_t, kTensorCount> row{};  // bytes per token, for tensors that have rows
  int64_t operator[](Tensor t) const { return unit[static_cast<int>(t)]; }
};

/// The table for one (whole) model, lengths, tiles and dtype. Throws bad_input where a size
/// overflows.
TensorBytes tensor_bytes(const ModelSpec& model, const Lengths& lengths, const Strategy& strategy,
                         DType dtype);

}  // namespace longspan
