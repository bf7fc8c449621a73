// The table of ops: one row per kind, the only description of its operands.
//
// Operands are in the order in which lowering emits them; docs/adding.md shows a new row.
#pragma once

#include <algorithm>

#include "planner/program/op_schema.h"
#include "planner/program/tensor_set.h"

namespace longspan {

namespace op_table {

inline constexpr Access r = kRead, w = kWrite, rw = kUpdate;
inline constexpr Presence optional = Presence::optional;
inline constexpr OpClass product = OpClass::product, attention = OpClass::attention,
                         elementwise = OpClass::elementwise, state = OpClass::state,
                         exchange = OpClass::exchange;
inline constexpr StreamSet compute{Stream::compute};
inline constexpr StreamSet comm{Stream::comm, Stream::compute};  // compute: without overlap

consteval OpRow row(OpKind kind, std::string_view name, OpClass op_class, StreamSet streams,
                    std::initializer_list<OperandRow> operands) {
  OpRow row{kind, name, op_class, streams, Names::nothing, {}};
  std::copy(operands.begin(), operands.end(), row.operands.begin());
  return row;
}
// The row of a kind that works on any tensor.
consteval OpRow tensor_row(OpKind kind, std::string_view name, OpClass op_class, StreamSet streams,
                           std::initializer_list<OperandRow> operands) {
  OpRow of_tensor = row(kind, name, op_class, streams, operands);
  of_tensor.names = Names::tensor;
  return of_tensor;
}

using enum Tensor;
using namespace tensor_sets;

inline constexpr std::array<OpRow, kOpKindCount> kRows{{
    // Filled by the data source.
    row(OpKind::batch, "batch", OpClass::input, {Stream::host}, {{"tokens", w, {tokens_all}}}),
    row(OpKind::documents, "documents", OpClass::input, {Stream::host},
        {{"begins", w, {Tensor::documents}}}),
    row(OpKind::embed_forward, "embed_forward", elementwise, compute,
        {{"params", r, {params_embedding}}, {"tokens", r, {tokens}}, {"x", w, {x}}}),
    row(OpKind::norm_forward, "norm_forward", elementwise, compute,
        {{"params", r, params}, {"x", r, residual}, {"h", w, {h, h_own}}}),
    // One head group. k and v are absent if it shares them with the group before.
    row(OpKind::qkv_forward, "qkv_forward", product, compute,
        {{"params", r, params},
         {"x", r, residual | h},
         {"q", w, {q, q_own}},
         {"k", w, {k, k_all, k_own}, optional},
         {"v", w, {v, v_all, v_own}, optional},
         {"workspace", w, {ws_qkv_forward}, optional},
         {"adapters", r, {params_adapters}, optional}}),
    // If the keys of a query chunk come in several ops, o_sum accumulates, and the last op also has
    // o. One op of a query chunk has the parameters, if heads have sinks: forward the first,
    // backward that of its own keys, with gradients.
    row(OpKind::attention_forward, "attention_forward", attention, compute,
        {{"q", r, {q}},
         {"k", r, {k, k_all}},
         {"v", r, {v, v_all}},
         {"o", w | rw, {o, o_heads}, optional},
         {"lse", w | rw, {lse}},
         {"workspace", w, {ws_attention_forward}},
         {"o_sum", w | rw, {o_sum}, optional},
         {"params", r, params, optional},
         {"documents", r, {Tensor::documents}, optional}}),
    // Merges the output of a query chunk for other keys, which another rank has computed. With
    // o_sum, that has the sum, and o is written.
    row(OpKind::merge_outputs, "merge_outputs", elementwise, compute,
        {{"part", r, {o_heads, o_sum}},
         {"part_lse", r, {lse}},
         {"o", w | rw, {o, o_heads}},
         {"lse", rw, {lse}},
         {"o_sum", rw, {o_sum}, optional}}),
    // y may be x. For one rank's part of a sum, x is absent and y is the part.
    row(OpKind::out_forward, "out_forward", product, compute,
        {{"params", r, params},
         {"x", r, residual, optional},
         {"o", r, {o}},
         {"y", w, residual | part},
         {"workspace", w, {ws_out}, optional},
         {"adapters", r, {params_adapters}, optional}}),
    // x may be y. One rank's part overwrites the normed rows, unless these are needed again. Here
    // and in the routing, experts with an auxiliary loss add to their load, once per token and
    // layer; in the backward they read its gradients.
    row(OpKind::mlp_forward, "mlp_forward", product, compute,
        {{"params", r, params},
         {"y", r, residual | h},
         {"x", w, residual | h | part},
         {"workspace", w, {ws_mlp_forward, ws_mlp_forward_saving}},
         {"inner", w | r, {inner}, optional},
         {"experts", r, {params_experts}, optional},
         {"adapters", r, {params_adapters}, optional},
         {"load", rw, {expert_load}, optional}}),
    // A layer's MLP in tiles, if its experts are on several ranks: the rows of a tile's tokens, in
    // the order of experts, go to the ranks of these and come back. In the backward, the rows of
    // the output's gradient and their weights go along.
    row(OpKind::route, "route", product, compute,
        {{"params", r, params},
         {"h", r, {h}},
         {"routing", w, {routing}},
         {"rows", w, {routed}},
         {"dx", r, gradient | dx_all, optional},
         {"gradients", w, {routed_gradients}, optional},
         {"weights", w, {routed_weights}, optional},
         {"load", rw, {expert_load}, optional}}),
    row(OpKind::dispatch, "dispatch", exchange, comm,
        {{"routing", r, {routing}},
         {"rows", r, {routed}},
         {"gradients", r, {routed_gradients}, optional},
         {"weights", r, {routed_weights}, optional},
         {"arrivals", w, {arrivals}},
         {"received", w, {received}},
         {"received_gradients", w, {received_gradients}, optional},
         {"received_weights", w, {received_weights}, optional}}),
    // The shared experts, while rows are on their way. x may be y; absent y is 0.
    row(OpKind::shared_forward, "shared_forward", product, compute,
        {{"params", r, params},
         {"h", r, {h}},
         {"routing", r, {routing}},
         {"y", r, residual, optional},
         {"x", w, residual | h},
         {"workspace", w, {ws_shared_forward}}}),
    // Replaces the rows by the experts' outputs.
    row(OpKind::experts_forward, "experts_forward", product, compute,
        {{"experts", r, {params_experts}},
         {"arrivals", r, {arrivals}},
         {"rows", rw, {received}},
         {"workspace", w, {ws_experts_forward}}}),
    row(OpKind::collect, "collect", exchange, comm,
        {{"arrivals", r, {arrivals}},
         {"received", r, {received}},
         {"received_weights", r, {received_weights}, optional},
         {"rows", w, {routed}},
         {"weights", w, {routed_weights}, optional}}),
    // x is y, or 0, and the weighted sums of the rows.
    row(OpKind::combine_forward, "combine_forward", elementwise, compute,
        {{"routing", r, {routing}},
         {"rows", r, {routed}},
         {"y", r, residual | h, optional},
         {"x", w, residual | h}}),
    // A norm of the output overwrites the sum.
    row(OpKind::residual_forward, "residual_forward", elementwise, compute,
        {{"params", r, params},
         {"x", r, residual},
         {"sum", r | rw, {sum_own}},
         {"y", w, residual}}),
    // Takes the log-probabilities of a microbatch's labels.
    row(OpKind::report, "report", OpClass::input, {Stream::host},
        {{"log_probs", r, {log_probs_all}}}),
    // Adds the auxiliary loss of a microbatch, from the load of all layers and ranks, and leaves in
    // the load its gradients.
    row(OpKind::balance, "balance", elementwise, compute,
        {{"load", rw, {expert_load}}, {"loss", rw, {Tensor::loss}}}),
    // With tied embeddings the output matrix is in the embedding unit. dx may be x. A forward alone
    // has log-probabilities instead of gradients. Frozen parameters have none, here and below.
    row(OpKind::loss, "loss", product, compute,
        {{"head", r, {params_head}},
         {"output", r, {params_embedding, params_head}},
         {"x", r, residual},
         {"tokens", r, {tokens}},
         {"loss", rw, {loss}},
         {"dx", w, residual, optional},
         {"head_grads", rw, {grads_head}, optional},
         {"output_grads", rw, {grads_embedding, grads_head}, optional},
         {"workspace", w, {ws_loss}},
         {"log_probs", w, {log_probs}, optional}}),
    // The final norm, on the rank of the last stage, if the vocabulary is cut.
    row(OpKind::final_norm_forward, "final_norm_forward", elementwise, compute,
        {{"head", r, {params_head}}, {"x", r, residual}, {"h", w, {h_own}}}),
    // The logits of a rank's share of the vocabulary, as the terms of their softmax, and what is
    // known
    // of the gradient of h.
    row(OpKind::vocabulary_forward, "vocabulary_forward", product, compute,
        {{"output", r, {params_embedding, params_head}},
         {"h", r, {h_own}},
         {"tokens", r, {tokens}},
         {"terms", w, {vocabulary_terms}},
         {"workspace", w, {ws_vocabulary}},
         {"gradient", w, {vocabulary_gradient}, optional}}),
    // Merges the terms of another share, or takes those of the first.
    row(OpKind::vocabulary_merge, "vocabulary_merge", elementwise, compute,
        {{"part", r, {vocabulary_terms}}, {"terms", w | rw, {vocabulary_terms}}}),
    // Adds a share's part of the gradient of h, by its terms and those of all shares.
    row(OpKind::vocabulary_combine, "vocabulary_combine", elementwise, compute,
        {{"part", r, {vocabulary_gradient}},
         {"part_terms", r, {vocabulary_terms}},
         {"terms", r, {vocabulary_terms}},
         {"dh", w | rw, {sum_own}}}),
    // The logits again, and their gradients. The loss is present on the rank of the last stage.
    row(OpKind::vocabulary_backward, "vocabulary_backward", product, compute,
        {{"output", r, {params_embedding, params_head}},
         {"h", r, {h_own}},
         {"tokens", r, {tokens}},
         {"terms", r, {vocabulary_terms}},
         {"output_grads", rw, {grads_embedding, grads_head}, optional},
         {"workspace", w, {ws_vocabulary}},
         {"dh", w, {sum_own}, optional},
         {"loss", rw, {loss}, optional}}),
    // dx is x.
    row(OpKind::final_norm_backward, "final_norm_backward", elementwise, compute,
        {{"head", r, {params_head}},
         {"x", r, residual},
         {"dh", r, {sum_own}},
         {"dx", w, residual},
         {"head_grads", rw, {grads_head}, optional}}),
    // For one rank's part, y is normed, and dx of all tokens becomes this part's gradient of it.
    row(OpKind::mlp_backward, "mlp_backward", product, compute,
        {{"params", r, params},
         {"y", r, residual | h},
         {"dx", rw, gradient | dx_all},
         {"grads", rw, grads, optional},
         {"workspace", w, {ws_mlp_backward, ws_mlp_backward_saved}},
         {"inner", rw, {inner}, optional},
         {"experts", r, {params_experts}, optional},
         {"expert_grads", rw, {grads_experts}, optional},
         {"adapters", r, {params_adapters}, optional},
         {"adapter_grads", rw, {grads_adapters}, optional},
         {"load", r, {expert_load}, optional}}),
    // The MLP's backward in two parts, around which norm and residual are separate ops. The first
    // leaves for the second its activations, and in place of `inner` its gradient. h is present if
    // `inner` is computed again, or routes. Has grads if there is a router, which the second part
    // only routes by.
    row(OpKind::mlp_backward_input, "mlp_backward_input", product, compute,
        {{"params", r, params},
         {"h", r, {h}, optional},
         {"dx", r, gradient | dx_all},
         {"inner", w | rw, {inner}},
         {"act", w, {act}},
         {"dh", w, {dh}},
         {"workspace", w, {ws_mlp_backward_input}},
         {"experts", r, {params_experts}, optional},
         {"grads", rw, grads, optional}}),
    row(OpKind::mlp_backward_weight, "mlp_backward_weight", product, compute,
        {{"h", r, {h}},
         {"dx", r, gradient | dx_all},
         {"inner", r, {inner}},
         {"act", r, {act}},
         {"grads", rw, grads},
         {"params", r, params, optional},
         {"expert_grads", rw, {grads_experts}, optional},
         {"workspace", w, {ws_mlp_backward_weight}, optional}}),
    // dh may be dx, in a tensor group. Leaves the gradients of gates in the routing.
    row(OpKind::shared_backward, "shared_backward", product, compute,
        {{"params", r, params},
         {"h", r, {h}},
         {"dx", r, gradient | dx_all},
         {"routing", rw, {routing}},
         {"dh", w, {dh, dx_all}},
         {"grads", rw, grads},
         {"workspace", w, {ws_shared_backward}}}),
    // Replaces the rows by their gradients, and the weights by theirs.
    row(OpKind::experts_backward, "experts_backward", product, compute,
        {{"experts", r, {params_experts}},
         {"arrivals", r, {arrivals}},
         {"rows", rw, {received}},
         {"gradients", r, {received_gradients}},
         {"weights", rw, {received_weights}},
         {"grads", rw, {grads_experts}},
         {"workspace", w, {ws_experts_backward}}}),
    // The sums of the rows, and the router's part.
    row(OpKind::combine_backward, "combine_backward", product, compute,
        {{"params", r, params},
         {"h", r, {h}},
         {"routing", rw, {routing}},
         {"rows", r, {routed}},
         {"weights", r, {routed_weights}},
         {"dh", w | rw, {dh, dx_all}},
         {"grads", rw, grads},
         {"load", r, {expert_load}, optional}}),
    // d_o may be o.
    row(OpKind::out_backward, "out_backward", product, compute,
        {{"params", r, params},
         {"dx", r, gradient | dx_all},
         {"o", r, {o}},
         {"d_o", w, {o}},
         {"delta", w, {delta, delta_own}},
         {"grads", rw, grads, optional},
         {"workspace", w, {ws_out}, optional},
         {"adapters", r, {params_adapters}, optional},
         {"adapter_grads", rw, {grads_adapters}, optional}}),
    row(OpKind::out_backward_input, "out_backward_input", product, compute,
        {{"params", r, params},
         {"dx", r, {dx, dx_all}},
         {"o", r, {o}},
         {"d_o", w, {d_o}},
         {"delta", w, {delta, delta_own}},
         {"workspace", w, {ws_out}, optional}}),
    row(OpKind::out_backward_weight, "out_backward_weight", product, compute,
        {{"dx", r, {dx, dx_all}},
         {"o", r, {o}},
         {"grads", rw, grads},
         {"workspace", w, {ws_out}, optional}}),
    row(OpKind::attention_backward, "attention_backward", attention, compute,
        {{"q", r, {q}},
         {"k", r, {k, k_all}},
         {"v", r, {v, v_all}},
         {"d_o", r, {o, d_o, d_o_heads}},
         {"lse", r, {lse}},
         {"delta", r, {delta, delta_heads}},
         {"dq", w | rw, {dq}},
         {"dk", w | rw, {dk, dk_all}},
         {"dv", w | rw, {dv, dv_all}},
         {"workspace", w, {ws_attention_backward}},
         {"params", r, params, optional},
         {"grads", rw, grads, optional},
         {"documents", r, {Tensor::documents}, optional}}),
    // dk and dv are present for the last head group that shares them.
    row(OpKind::qkv_backward, "qkv_backward", product, compute,
        {{"params", r, params},
         {"x", r, residual | h},
         {"dq", rw, {dq, dq_own}},
         {"dk", rw, {dk, dk_all, dk_own}, optional},
         {"dv", rw, {dv, dv_all, dv_own}, optional},
         {"dx", w | rw, gradient | dh},
         {"grads", rw, grads, optional},
         {"workspace", w, {ws_qkv_backward}},
         {"adapters", r, {params_adapters}, optional},
         {"adapter_grads", rw, {grads_adapters}, optional}}),
    // dqkv is the gradient of the product. Has grads if there are norms of q and k.
    row(OpKind::qkv_backward_input, "qkv_backward_input", product, compute,
        {{"params", r, params},
         {"h", r, {h}},
         {"dq", rw, {dq, dq_own}},
         {"dk", rw, {dk, dk_all, dk_own}},
         {"dv", rw, {dv, dv_all, dv_own}},
         {"dqkv", w, {dqkv}},
         {"dh", w, {dh}},
         {"grads", rw, grads, optional},
         {"workspace", w, {ws_qkv_backward_input}}}),
    row(OpKind::qkv_backward_weight, "qkv_backward_weight", product, compute,
        {{"h", r, {h}},
         {"dqkv", r, {dqkv}},
         {"grads", rw, grads},
         {"workspace", w, {ws_qkv_backward_input}, optional}}),
    // The sum of dx and the norm's part replaces dx, or goes to `to`.
    row(OpKind::norm_backward, "norm_backward", elementwise, compute,
        {{"params", r, params},
         {"x", r, residual},
         {"dh", r, {dh, sum_own}},
         {"dx", r | rw, gradient},
         {"grads", rw, grads, optional},
         {"to", w, {dx}, optional}}),
    // The gradient of a bias. With norms of outputs the sum is there, and becomes its gradient.
    row(OpKind::residual_backward, "residual_backward", elementwise, compute,
        {{"params", r, params, optional},
         {"dx", r, gradient},
         {"sum", rw, {sum_own}, optional},
         {"grads", rw, grads, optional}}),
    // Where layers work on a share of the tokens: their rows of the residual or of its gradient,
    // taken from those of more tokens, and put back in their place.
    row(OpKind::select_rows, "select_rows", elementwise, compute,
        {{"all", r, gradient}, {"rows", w, {x, dx}}}),
    row(OpKind::restore_rows, "restore_rows", elementwise, compute,
        {{"rows", r, gradient}, {"all", rw, gradient}}),
    row(OpKind::embed_backward, "embed_backward", elementwise, compute,
        {{"tokens", r, {tokens}}, {"dx", r, gradient}, {"grads", rw, {grads_embedding}}}),
    // A unit's parameters from 4 bits, before each use.
    tensor_row(OpKind::dequantize, "dequantize", elementwise, compute,
               {{"source", r, nf4s}, {"params", w, {params_layer, params_experts}}}),
    // Adds what other ranks have computed: gradients of a ring or of shared attention, what shares
    // of a cut vocabulary give, or a tensor group's gradient of an input without a norm.
    tensor_row(OpKind::add, "add", elementwise, compute,
               {{"sum", rw, gradient | TensorSet{dk_all, dv_all, dq, dk, dv, sum_own}},
                {"part", r, {dk_all, dv_all, dq, dk, dv, x, sum_own}}}),
    tensor_row(
        OpKind::zero, "zero", state, compute,
        {{"buffer", w, all_grads | dk_all | dv_all | dk | dv | loss | grad_norm | expert_load}}),
    tensor_row(OpKind::sum_of_squares, "sum_of_squares", state, compute,
               {{"grads", r, all_grads | grad_shards}, {"grad_norm", rw, {grad_norm}}}),
    tensor_row(
        OpKind::adamw, "adamw", state, {Stream::compute, Stream::host},
        {{"grads", r, all_grads | grad_shards},
         {"grad_norm", r, {grad_norm}, optional},  // absent: that of the step before
         {"m", rw, {adam_m_embedding, adam_m_layer, adam_m_head, adam_m_experts, adam_m_adapters}},
         {"v", rw, {adam_v_embedding, adam_v_layer, adam_v_head, adam_v_experts, adam_v_adapters}},
         {"params", rw, all_params | param_shards | masters},
         {"narrowed", w, all_params | param_shards, optional}}),
    tensor_row(OpKind::copy_h2d, "copy_h2d", OpClass::copy, {Stream::h2d},
               {{"source", r, any}, {"destination", w, any}}),
    tensor_row(OpKind::copy_d2h, "copy_d2h", OpClass::copy, {Stream::d2h},
               {{"source", r, any}, {"destination", w, any}}),
    tensor_row(OpKind::io_read, "io_read", OpClass::io, {Stream::io},
               {{"source", r, any}, {"destination", w, any}}),
    tensor_row(OpKind::io_write, "io_write", OpClass::io, {Stream::io},
               {{"source", r, any}, {"destination", w, any}}),
    // Exchanges a chunk's tokens for heads (of one head group), or heads for tokens, in a Ulysses
    // group.
    tensor_row(OpKind::all_to_all, "all_to_all", exchange, comm,
               {{"source",
                 r,
                 {q_own, k_own, v_own, o, d_o, delta_own, o_heads, dq, dk, dv, dk_all, dv_all},
                 Presence::required,
                 kExchanged},
                {"destination",
                 w,
                 {q, k, v, k_all, v_all, d_o_heads, delta_heads, o, dq_own, dk_own, dv_own},
                 Presence::required,
                 kExchanged},
                {"workspace", w, {ws_exchange, ws_exchange_queries}}}),
    // Sends to the ring's next rank, receives from the one before.
    tensor_row(OpKind::ring_shift, "ring_shift", exchange, comm,
               {{"k", r, {k_all, dk_all}},
                {"v", r, {v_all, dv_all}},
                {"next_k", w, {k_all, dk_all}},
                {"next_v", w, {v_all, dv_all}}}),
    // Gathers a unit's shards, whose own one may lie in the whole; or own tokens in a tensor group.
    tensor_row(OpKind::all_gather, "all_gather", exchange, comm,
               {{"part", r, all_params | param_shards | gradient | TensorSet{h_own, sum_own}},
                {"whole", w | rw, all_params | h | dx_all}}),
    // Adds the ranks' sum of gradients to the shard; or sums the parts in a tensor group.
    tensor_row(OpKind::reduce_scatter, "reduce_scatter", exchange, comm,
               {{"parts", r | rw, all_grads | part | h | dh | dx_all},
                {"sum", w | rw, grad_shards | sum_own},
                {"workspace", w, {ws_reduce, ws_scatter}}}),
    tensor_row(OpKind::all_reduce, "all_reduce", exchange, comm,
               {{"sum", rw, all_grads | grads_embedding_shard | loss | grad_norm | expert_load},
                {"workspace", w, {ws_reduce, ws_reduce_ends}, optional}}),
    // Sums gradients of parameters that a tensor group replicates; those of experts it cuts.
    tensor_row(OpKind::sum_replicated, "sum_replicated", exchange, comm,
               {{"grads", rw, {grads_embedding, grads_layer, grads_head}},
                {"workspace", w, {ws_replicated}}}),
    // To, and from, the same place in the next or previous stage of the pipeline, or in any mesh
    // that shares attention or the vocabulary. A send only posts the rows; they have left when
    // `sent` is done.
    tensor_row(OpKind::send, "send", exchange, comm,
               {{"rows", r, gradient | of_attention | shared}}),
    tensor_row(OpKind::sent, "sent", exchange, comm,
               {{"rows", r, gradient | of_attention | shared}}),
    tensor_row(OpKind::receive, "receive", exchange, comm,
               {{"rows", w, of_attention | shared | TensorSet{x, dx}}}),
}};

}  // namespace op_table

/// The index of the (first) operand of this name in its op's list. Does not compile for a name that
/// is not in the row.
consteval int operand_index(OpKind kind, std::string_view name) {
  int index = 0;
  for (const OperandRow& row : op_table::kRows[static_cast<size_t>(kind)].operands) {
    if (row.name.empty()) break;
    if (row.name == name) return index;
    index += row.at_most;
  }
  throw "the row of this op kind has no operand of this name";
}

}  // namespace longspan
