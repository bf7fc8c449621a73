// The offsets of a layer's tensors in its parameter unit.
#pragma once

#include <cstdint>

#include "models/model_spec.h"

namespace longspan {

/// Offsets in elements; -1 for a tensor that the model does not have. The q, k, v weights are one
/// [A+2G, d] matrix; gate and up are one [W, d] matrix.
struct LayerOffsets {
  int64_t norm1_weight = -1, norm1_bias = -1;
  int64_t qkv_weight = -1, qkv_bias = -1;
  int64_t q_norm = -1, k_norm = -1;
  int64_t out_weight = -1, out_bias = -1;
  int64_t sinks = -1;
  int64_t norm2_weight = -1, norm2_bias = -1;
  int64_t out_norm1_weight = -1, out_norm1_bias = -1;  // of the output of attention
  int64_t out_norm2_weight = -1, out_norm2_bias = -1;  // of that of the MLP
  int64_t up_weight = -1, up_bias = -1;
  int64_t down_weight = -1, down_bias = -1;
  // With experts: up and down are those of shared ones, which have no biases.
  int64_t router_weight = -1, router_bias = -1, selection_bias = -1;
  int64_t shared_gate = -1;
  // In the unit of experts.
  int64_t experts_up_bias = -1, experts_down_weight = -1, experts_down_bias = -1;
};

/// `model` is uniform; a rank has the experts of one of `expert_degree`. Throws bad_input if a
/// layer of the model has parameters that the blocks do not support.
LayerOffsets layer_offsets(const ModelSpec& model, int64_t expert_degree = 1);

}  // namespace longspan
