// The tensors of a step program, the shape of one unit of each, and its bytes.
//
// A buffer is one unit of a tensor: the queries of one chunk, the residual of one block, the
// parameters of one layer. Its bytes depend only on the tensor, so a list of ops is independent of
// sizes, and sizes are a separate table.
//
// In attention a rank of a Ulysses group holds all tokens of 1/U of the heads, elsewhere its own
// tokens with all heads; "_own" and "_heads" distinguish the two forms of a tensor. With head
// groups, tensors per chunk, and K,V with their gradients, hold the heads of one group; tensors per
// block hold those of all groups.
//
// A rank of a tensor group holds the residual and its norms for its own tokens, and everything
// between for all tokens, where H, Hkv and W are its share of the model's (U is then 1).
//
// A rank of several that share the experts of a layer has, of a tile of a block, the rows that its
// tokens send and those that it gets; these have the tile's rows k times, k experts of a token, and
// the rows of expert_tiles.h.
//
// Legend: S a ring position's share of the sequence, b block, c chunk (tokens); U Ulysses degree, P
// = U times the head groups, T tensor degree; d hidden, A = H*D, G = Hkv*D, H heads, F and W
// ModelSpec::mlp_width() and inner_width(), V vocabulary. G/P is the width of at least one head.
//
// With latent attention k and v are those of all heads, as attention reads them; v, o and their
// gradients have value_dim in place of D.
//
// With experts, a row of `inner` or `act` has those of a token's active experts, so their bytes do
// not depend on the routing. Within a tile of the MLP their rows are in the order of experts.
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
  // parameters and their states; five consecutive kinds each: embedding, layer, head unit, experts,
  // adapters
  params_embedding,
  params_layer,
  params_head,
  params_experts,
  params_adapters,  // read by the kernels, in compute dtype
  master_embedding,
  master_layer,
  master_head,
  master_experts,
  master_adapters,  // float32 master copy, if has_masters()
  grads_embedding,
  grads_layer,
  grads_head,
  grads_experts,
  grads_adapters,  // float32
  adam_m_embedding,
  adam_m_layer,
  adam_m_head,
  adam_m_experts,
  adam_m_adapters,  // float32
  adam_v_embedding,
  adam_v_layer,
  adam_v_head,
  adam_v_experts,
  adam_v_adapters,  // float32
  params_embedding_shard,
  params_layer_shard,
  params_head_shard,
  params_experts_shard,
  params_adapters_shard,  // one rank's shard under ZeRO
  grads_embedding_shard,
  grads_layer_shard,
  grads_head_shard,
  grads_experts_shard,
  grads_adapters_shard,
  nf4_embedding,
  nf4_layer,
  nf4_head,
  nf4_experts,
  nf4_adapters,  // frozen parameters in 4 bits; of layers and experts alone
  // per sequence
  tokens_all,     // int32 [S/b, 2, b/UT]: inputs and labels of each block
  log_probs_all,  // float32 [S/b, b/UT] of the labels, of a forward alone
  documents,      // int32 [S] where each token's document begins, in the whole sequence
  k_all,
  v_all,  // [S, G/P]
  dk_all,
  dv_all,  // float32 [S, G/P]
  // per block
  tokens,     // int32 [2, b/UT]
  log_probs,  // float32 [b/UT]
  x,
  y,
  dx,  // [b/UT, d] residual, residual after attention, gradient of either
  h,
  dh,  // [b/U, d] norm, its gradient
  h_own,
  sum_own,           // [b/UT, d] norm; the sum of all ranks' parts, of tokens or of the vocabulary
  vocabulary_terms,  // float32 [b/UT, 3] of the softmax over shares of the vocabulary: maximum, sum
                     // of exponentials, the label's logit or 0
  vocabulary_gradient,  // [b/UT, 2d] of a share: the sum of its output rows, weighted by the
                        // exponentials; the label's row or 0
  part,
  dx_all,  // [b, d] this rank's part of such a sum; dx of all tokens
  o,
  d_o,        // [b/U, A]
  delta_own,  // float32 [b/U, H]
  lse,
  delta,  // float32 [b, H/U]
  inner,  // [b/U, W]
  act,    // [b/U, F] the activations, kept for the gradients of weights
  // per chunk
  q,  // [c, A/P]
  k,
  v,   // [c, G/P]
  dq,  // float32 [c, A/P]
  dk,
  dv,  // float32 [c, G/P]
  o_heads,
  d_o_heads,    // [c, A/P]
  o_sum,        // float32 [c, A/P], if sums_attention()
  delta_heads,  // float32 [c, H/P]
  q_own,        // [c/U, A*U/P]
  k_own,
  v_own,   // [c/U, G*U/P], at most G
  dq_own,  // float32 [c/U, A*U/P]
  dk_own,
  dv_own,  // float32 [c/U, G*U/P], at most G
  dqkv,    // [c/U, A+2G] gradients of the products, kept for those of weights
  // per tile of a block, whose rows go to experts of other ranks
  routing,           // rows of experts, and float32 [t, routing_width()]
  routed,            // [t*k, d] rows of the tile's tokens, in the order of experts
  routed_gradients,  // likewise those of the output's gradient
  routed_weights,    // float32 [t*k] weights of rows, then their gradients
  received,          // [C, d] rows of the rank's experts, of at most C
  received_gradients,
  received_weights,  // float32 [C]
  arrivals,          // rows of experts on every rank of the group
  // workspaces of ops, one kind each
  ws_qkv_forward,
  ws_attention_forward,
  ws_mlp_forward,
  ws_mlp_forward_saving,
  ws_out,
  ws_loss,
  ws_vocabulary,
  ws_mlp_backward,
  ws_mlp_backward_saved,
  ws_mlp_backward_input,
  ws_mlp_backward_weight,  // with experts
  ws_experts_forward,
  ws_experts_backward,  // of the rows that a rank has received
  ws_shared_forward,
  ws_shared_backward,  // of shared experts
  ws_attention_backward,
  ws_qkv_backward,
  ws_qkv_backward_input,
  ws_exchange,          // staging of an all-to-all of q, k, v or their gradients
  ws_exchange_queries,  // staging without K,V: q, o, d_o with delta, or dq
  ws_reduce,            // pieces of other ranks for a sum
  ws_reduce_ends,       // the same, of a tied table over the ends of a pipeline
  ws_scatter,           // the same, of activations in a tensor group
  ws_replicated,        // gradients that a tensor group replicates, and pieces of other ranks
  // scalars
  loss,
  grad_norm,    // float64
  expert_load,  // float64 [2, E] of a microbatch, on this rank or all of its sequence: the tokens
                // that chose an expert, and the sum of its probabilities. After `balance` the first
                // E are the gradients of the auxiliary loss, of each probability
  count
};
inline constexpr int kTensorCount = static_cast<int>(Tensor::count);
std::string_view name_of(Tensor);

/// The extent of the rows of a tensor's unit.
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
/// Parameters in 4 bits.
bool is_nf4(Tensor);
/// Parameters in compute dtype, as kernels read them; whole or a shard.
bool is_parameters(Tensor);
/// Gradients of parameters, whole or a shard.
bool is_gradients(Tensor);
/// One rank's shard under ZeRO.
bool is_shard(Tensor);
/// The kind of unit that a state is of. REQUIRES: is_state().
ParameterUnit::Kind unit_kind(Tensor);
/// Scratch memory of an op, without contents before and after it.
bool is_workspace(Tensor);

using UnitKind = ParameterUnit::Kind;
inline constexpr int kUnitKinds = 5;
/// The tensor of a state for a kind of unit. REQUIRES: `first` is the state's embedding tensor.
Tensor unit_tensor(Tensor first, UnitKind kind);

/// The lengths of a program, of one ring position.
struct Lengths {
  int64_t local_sequence = 0;  // S
  int64_t block = 0;           // b
  int64_t chunk = 0;           // c
  int64_t ulysses = 1;         // U
  int64_t tensor = 1;          // T
  int64_t head_groups = 1;
  int64_t expert = 1;  // ranks that have a layer's experts together

  int64_t chunks() const { return local_sequence / chunk; }
  int64_t blocks() const { return local_sequence / block; }
  /// The rows of a chunk, and of a block, that a rank projects.
  int64_t own_chunk() const { return chunk / ulysses; }
  int64_t dense_block() const { return block / ulysses; }
  /// The rows of a block's residual on a rank, and the number of them that are consecutive in the
  /// sequence.
  int64_t own_block() const { return dense_block() / tensor; }
  int64_t own_run() const { return tensor > 1 ? own_block() : own_chunk(); }
  /// The number of parts of the heads; a rank attends with one part at a time.
  int64_t head_shares() const { return ulysses * head_groups; }
  /// Rows of one unit of a tensor; 0 for tensors without rows.
  int64_t rows(Tensor t) const;
  /// Rows of one chunk in a tensor.
  int64_t chunk_rows(Tensor t) const { return is_own(t) ? own_chunk() : chunk; }
};
Lengths lengths_of(const Strategy& strategy, int64_t sequence);

/// True if the keys and values of a layer are not on the device between uses, but stream there
/// chunk by chunk.
bool streams_keys(const Strategy& strategy, const Lengths& lengths);

/// True if AdamW updates float32 copies of the parameters that kernels read.
inline bool has_masters(const Strategy& s, DType dtype) {
  return dtype != DType::float32 && s.masters == MasterFormat::float32;
}

/// True if the output of a query chunk may come from several ops, as keys stream, come in slices or
/// travel around a ring, and activations are narrower than the float32 of the sum (o_sum).
bool sums_attention(const Strategy& strategy, const Lengths& lengths, DType dtype);

/// The heads of one head group over all ranks, which a rank projects for its own tokens.
struct GroupHeads {
  int64_t q = 0, kv = 0;
};
GroupHeads group_heads(const ModelSpec& model, const Lengths& lengths);
/// The number of distinct K,V over the head groups: neighbouring groups share K,V heads if a rank
/// has fewer of them than groups.
int64_t kv_groups(const ModelSpec& model, const Lengths& lengths);

/// Columns of vocabulary_terms.
inline constexpr int64_t kVocabularyTerms = 3;

/// Bytes of one unit of every tensor.
struct TensorBytes {
  std::array<int64_t, kTensorCount> unit{};
  std::array<int64_t, kTensorCount> row{};  // bytes per token, for tensors that have rows
  int64_t operator[](Tensor t) const { return unit[static_cast<int>(t)]; }
};

/// The table for a (whole) model, lengths, tiles, dtype and device (DeviceProfile). Throws
/// bad_input if a size overflows.
TensorBytes tensor_bytes(const ModelSpec& model, const Lengths& lengths, const Strategy& strategy,
                         DType dtype, int64_t compute_capability);

}  // namespace longspan
