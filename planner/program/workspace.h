// Scratch memory per op kind. The planner sizes arenas by it, and the backends' kernels must not
// need more; tests compare them.
#pragma once

#include <array>
#include <cstdint>

#include "models/model_spec.h"
#include "planner/program/op.h"
#include "planner/program/tensor.h"

namespace longspan {

/// Elements of an embedding, a layer and the head unit. Faster than parameter_units(), and equal by
/// a test.
std::array<int64_t, 3> unit_elements(const ModelSpec& model);
/// Elements of the unit of a layer's experts; 0 without experts. Likewise equal by a test.
int64_t experts_elements(const ModelSpec& model);
/// Elements of a layer, and of its experts, that are in no matrix: norms and biases. Likewise
/// equal.
std::array<int64_t, 2> plain_elements(const ModelSpec& model);
/// Elements of each that all ranks of a tensor group replicate; `model` may be that of any rank.
/// Equal to replicated_in_layer() by a test.
std::array<int64_t, 3> replicated_elements(const ModelSpec& model);

/// float32 numbers of a token that choose its experts and route its rows, in the workspace of a
/// mixture of experts: the router's scores [E]; the active experts' weights, the gradients of
/// these, indices, and the places of rows in the order of experts, and back [active each]; the gate
/// of shared experts and its gradient.
int64_t routing_width(const Experts& experts);

/// Elements of a token that adapters need in an op's backward: x A^T, and the gradient of that for
/// each adapter of the same input. A forward needs one of these.
struct AdapterWidths {
  int64_t rank = 0;
  int64_t qkv = 0, out = 0, mlp = 0;
  int64_t forward(int64_t backward) const { return backward > 0 ? rank : 0; }
};
AdapterWidths adapter_widths(const ModelSpec& model);

/// Bytes, by op kind.
struct Workspaces {
  int64_t qkv_forward = 0;
  int64_t attention_forward = 0;
  int64_t mlp_forward = 0, mlp_forward_saving = 0;
  int64_t out = 0;  // of the output projection, forward and backward
  int64_t loss = 0, vocabulary = 0;
  int64_t mlp_backward = 0, mlp_backward_saved = 0, mlp_backward_input = 0;
  int64_t mlp_backward_weight = 0;
  int64_t attention_backward = 0;
  int64_t qkv_backward = 0, qkv_backward_input = 0;
  // All-to-all: the bytes of a chunk's (or head group's) tensors sent to, or received from, other
  // ranks.
  int64_t exchange = 0, exchange_queries = 0;
  int64_t reduce = 0;       // pieces of the other ranks' gradients
  int64_t reduce_ends = 0;  // of the other end's gradients of a tied table
  int64_t scatter = 0;      // pieces of the other ranks' parts of a sum of activations
  int64_t replicated = 0;   // a layer's replicated gradients, and pieces of other ranks'
};
/// The copies of products' operands below 16 bits (casts.h) that an op of this kind holds, in its
/// workspace. Not for ops of experts on several ranks (expert_tiles.h). `has_inner`: an MLP's
/// backward is given the pre-activation. `model`: with a rank's share of the layers' widths.
int64_t copies_of(const ModelSpec& model, const Lengths& lengths, const Strategy& strategy,
                  OpKind kind, bool has_inner = false);
/// `model`: likewise.
Workspaces workspaces(const ModelSpec& model, const Lengths& lengths, const Strategy& strategy,
                      DType dtype, int64_t compute_capability);

}  // namespace longspan
