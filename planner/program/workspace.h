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
  int64_t reduce = 0;  // pieces of the other ranks' gradients
};
Workspaces workspaces(const ModelSpec& model, const Lengths& lengths, const Strategy& strategy,
                      DType dtype);

}  // namespace longspan
