// How much scratch memory each op kind declares: the same rule the planner sizes the arena by and
// the backend's kernels are written to. A kernel that needs more is a bug in one of the two; tests
// hold them together.
#pragma once

#include <array>
#include <cstdint>

#include "models/model_spec.h"
#include "planner/program/tensor.h"

namespace longspan {

/// Elements of an embedding, a layer and the head unit. Cheaper than parameter_units(); a test
/// holds it to them.
std::array<int64_t, 3> unit_elements(const ModelSpec& model);
/// Elements of each that all ranks of a tensor group hold alike; any of their models may be given.
/// A test holds it to replicated_in_layer().
std::array<int64_t, 3> replicated_elements(const ModelSpec& model);

/// Bytes, by op kind.
struct Workspaces {
  int64_t qkv_forward = 0;
  int64_t attention_forward = 0;
  int64_t mlp_forward = 0, mlp_forward_saving = 0;
  int64_t loss = 0;
  int64_t mlp_backward = 0, mlp_backward_saved = 0;
  int64_t attention_backward = 0;
  int64_t qkv_backward = 0;
  // All-to-all: what goes to, or comes from, the other ranks of a chunk's (or head group's)
  // tensors.
  int64_t exchange = 0, exchange_queries = 0;
  int64_t reduce = 0;      // pieces of the other ranks' gradients
  int64_t scatter = 0;     // pieces of the other ranks' parts of a sum of activations
  int64_t replicated = 0;  // a layer's replicated gradients, and pieces of the other ranks'
};
/// `model` is the one a rank's layers are of.
Workspaces workspaces(const ModelSpec& model, const Lengths& lengths, const Strategy& strategy,
                      DType dtype);

}  // namespace longspan
