#include "planner/program/tensor.h"

#include "base/units.h"
#include "planner/program/workspace.h"

namespace longspan {

std::string_view name_of(DType dtype) { return dtype == DType::float32 ? "float32" : "bfloat16"; }

std::string_view name_of(Tensor tensor) {
  static constexpr std::string_view names[] = {"params embedding",
                                               "params layer",
                                               "params head",
                                               "master embedding",
                                               "master layer",
                                               "master head",
                                               "grads embedding",
                                               "grads layer",
                                               "grads head",
                                               "adam_m embedding",
                                               "adam_m layer",
                                               "adam_m head",
                                               "adam_v embedding",
                                               "adam_v layer",
                                               "adam_v head",
                                               "tokens_all",
                                               "k_all",
                                               "v_all",
                                               "dk_all",
                                               "dv_all",
                                               "tokens",
                                               "x",
                                               "y",
                                               "h",
                                               "dx",
                                               "dh",
                                               "o",
                                               "d_o",
                                               "lse",
                                               "delta",
                                               "inner",
                                               "q",
                                               "k",
                                               "v",
                                               "dq",
                                               "dk",
                                               "dv",
                                               "qkv workspace",
                                               "attention workspace",
                                               "mlp workspace",
                                               "mlp workspace",
                                               "loss workspace",
                                               "mlp backward workspace",
                                               "mlp backward workspace",
                                               "attention backward workspace",
                                               "qkv backward workspace",
                                               "loss",
                                               "grad_norm"};
  static_assert(std::size(names) == kTensorCount);
  return names[static_cast<int>(tensor)];
}

Rows rows_of(Tensor tensor) {
  if (tensor >= Tensor::tokens_all && tensor <= Tensor::dv_all) return Rows::sequence;
  if (tensor >= Tensor::tokens && tensor <= Tensor::inner) return Rows::block;
  if (tensor >= Tensor::q && tensor <= Tensor::dv) return Rows::chunk;
  return Rows::none;
}

TensorBytes tensor_bytes(const ModelSpec& model, const Lengths& lengths, const Strategy& strategy,
                         DType dtype) {
  TensorBytes table;
  const auto at = [&](Tensor t) -> int64_t& { return table.unit[static_cast<int>(t)]; };
  const int64_t act = size_of(dtype);  // activations
  constexpr int64_t f32 = 4;
  const int64_t d = model.hidden, heads = model.heads;
  const int64_t attention = model.attention_width(), kv = model.kv_width();
  const int64_t inner = model.activation == Activation::swiglu ? 2 * model.ffn : model.ffn;

  const auto rows = [&](Tensor t, int64_t row_bytes, int64_t extra_rows = 0) {
    table.row[static_cast<int>(t)] = row_bytes;
    at(t) = checked_mul(lengths.rows(rows_of(t)) + extra_rows, row_bytes, name_of(t));
  };
  rows(Tensor::tokens_all, f32, 1);
  rows(Tensor::tokens, f32, 1);
  for (const Tensor t : {Tensor::k_all, Tensor::v_all, Tensor::k, Tensor::v}) rows(t, kv * act);
  for (const Tensor t : {Tensor::dk_all, Tensor::dv_all, Tensor::dk, Tensor::dv}) rows(t, kv * f32);
  for (const Tensor t : {Tensor::x, Tensor::y, Tensor::h, Tensor::dx, Tensor::dh}) rows(t, d * act);
  for (const Tensor t : {Tensor::o, Tensor::d_o, Tensor::q}) rows(t, attention * act);
  for (const Tensor t : {Tensor::lse, Tensor::delta}) rows(t, heads * f32);
  rows(Tensor::inner, inner * act);
  rows(Tensor::dq, attention * f32);

  const auto set_units = [&](Tensor first, const std::array<int64_t, 3>& elements, int64_t bytes) {
    for (int i = 0; i < 3; ++i) {
      table.unit[static_cast<int>(first) + i] = checked_mul(elements[i], bytes, name_of(first));
    }
  };
  const std::array<int64_t, 3> elements = unit_elements(model);
  set_units(Tensor::params_embedding, elements, act);
  for (const Tensor first : {Tensor::master_embedding, Tensor::grads_embedding,
                             Tensor::adam_m_embedding, Tensor::adam_v_embedding}) {
    set_units(first, elements, f32);
  }

  const Workspaces ws = workspaces(model, lengths, strategy, dtype);
  at(Tensor::ws_qkv_forward) = ws.qkv_forward;
  at(Tensor::ws_attention_forward) = ws.attention_forward;
  at(Tensor::ws_mlp_forward) = ws.mlp_forward;
  at(Tensor::ws_mlp_forward_saving) = ws.mlp_forward_saving;
  at(Tensor::ws_loss) = ws.loss;
  at(Tensor::ws_mlp_backward) = ws.mlp_backward;
  at(Tensor::ws_mlp_backward_saved) = ws.mlp_backward_saved;
  at(Tensor::ws_attention_backward) = ws.attention_backward;
  at(Tensor::ws_qkv_backward) = ws.qkv_backward;
  at(Tensor::loss) = at(Tensor::grad_norm) = 8;
  return table;
}

}  // namespace longspan
