// The buffers of a step program: what kinds of tensor exist, what one unit of each holds, and how
// many bytes that is.
//
// A buffer is one unit of a tensor: the queries of one chunk, the residual of one block, the
// parameters of one layer. Its bytes depend only on the tensor, so a program is the same list for
// any sizes of the same shape, and sizes are a table beside it.
//
// Legend: S sequence, b block, c chunk (tokens); d hidden, A = H*D, G = Hkv*D, H heads, W inner
// width of the MLP, V vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "models/model_spec.h"
#include "planner/plan/strategy.h"

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
  // per sequence
  tokens_all,  // int32 [S+1]
  k_all,
  v_all,  // [S, G]
  dk_all,
  dv_all,  // float32 [S, G]
  // per block
  tokens,  // int32 [b+1]
  x,
  y,
  h,  // [b, d] residual in, residual after attention, normed
  dx,
  dh,  // [b, d]
  o,
  d_o,  // [b, A]
  lse,
  delta,  // float32 [b, H]
  inner,  // [b, W]
  // per chunk
  q,  // [c, A]
  k,
  v,   // [c, G]
  dq,  // float32 [c, A]
  dk,
  dv,  // float32 [c, G]
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

/// The lengths a program is built for.
struct Lengths {
  int64_t sequence = 0;  // S
  int64_t block = 0;     // b
  int64_t chunk = 0;     // c
  int64_t rows(Rows r) const {
    return r == Rows::sequence ? sequence : r == Rows::block ? block : r == Rows::chunk ? chunk : 0;
  }
};

/// Bytes of one unit of every tensor.
struct TensorBytes {
  std::array<int64_t, kTensorCount> unit{};
  std::array<int64_t, kTensorCount> row{};  // bytes per token, for tensors that have rows
  int64_t operator[](Tensor t) const { return unit[static_cast<int>(t)]; }
};

/// The table for one model, lengths, tiles and dtype. Throws bad_input where a size overflows.
TensorBytes tensor_bytes(const ModelSpec& model, const Lengths& lengths, const Strategy& strategy,
                         DType dtype);

}  // namespace longspan
