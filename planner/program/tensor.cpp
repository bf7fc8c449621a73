#include "planner/program/tensor.h"

#include <algorithm>
#include <cassert>
#include <optional>

#include "base/units.h"
#include "models/adapters.h"
#include "models/nf4.h"
#include "models/tensor_slices.h"
#include "models/training.h"
#include "planner/program/expert_tiles.h"
#include "planner/program/moment_format.h"
#include "planner/program/workspace.h"

namespace longspan {
namespace {

constexpr int64_t kShardAlignment = 64;  // elements

constexpr Rows row_kind(Tensor tensor) {
  if (tensor >= Tensor::tokens_all && tensor <= Tensor::dv_all) return Rows::sequence;
  if (tensor >= Tensor::tokens && tensor <= Tensor::act) return Rows::block;
  if (tensor >= Tensor::q && tensor <= Tensor::dqkv) return Rows::chunk;
  return Rows::none;
}

constexpr bool has_own_rows(Tensor tensor) {
  switch (tensor) {
    case Tensor::documents:
    case Tensor::k_all:
    case Tensor::v_all:
    case Tensor::dk_all:
    case Tensor::dv_all:
    case Tensor::lse:
    case Tensor::delta:
      return false;
    default:
      return row_kind(tensor) != Rows::none && (tensor < Tensor::q || tensor > Tensor::delta_heads);
  }
}

constexpr bool has_scattered_rows(Tensor tensor) {
  switch (tensor) {
    case Tensor::tokens_all:
    case Tensor::log_probs_all:
    case Tensor::tokens:
    case Tensor::log_probs:
    case Tensor::x:
    case Tensor::y:
    case Tensor::dx:
    case Tensor::h_own:
    case Tensor::sum_own:
    case Tensor::vocabulary_terms:
    case Tensor::vocabulary_gradient:
      return true;
    default:
      return false;
  }
}

// A table, as searches read it for all tensors tens of thousands of times a second.
struct RowKind {
  Rows rows;
  bool own, scattered;
};
constexpr auto kRowKinds = [] {
  std::array<RowKind, kTensorCount> kinds{};
  for (int i = 0; i < kTensorCount; ++i) {
    const auto t = static_cast<Tensor>(i);
    kinds[i] = {row_kind(t), has_own_rows(t), has_scattered_rows(t)};
  }
  return kinds;
}();

}  // namespace

std::string_view name_of(DType dtype) { return dtype == DType::float32 ? "float32" : "bfloat16"; }

std::string_view name_of(Tensor tensor) {
  static constexpr std::string_view names[] = {"params embedding",
                                               "params layer",
                                               "params head",
                                               "params experts",
                                               "params adapters",
                                               "master embedding",
                                               "master layer",
                                               "master head",
                                               "master experts",
                                               "master adapters",
                                               "grads embedding",
                                               "grads layer",
                                               "grads head",
                                               "grads experts",
                                               "grads adapters",
                                               "adam_m embedding",
                                               "adam_m layer",
                                               "adam_m head",
                                               "adam_m experts",
                                               "adam_m adapters",
                                               "adam_v embedding",
                                               "adam_v layer",
                                               "adam_v head",
                                               "adam_v experts",
                                               "adam_v adapters",
                                               "params embedding",
                                               "params layer",
                                               "params head",
                                               "params experts",
                                               "params adapters",
                                               "grads embedding",
                                               "grads layer",
                                               "grads head",
                                               "grads experts",
                                               "grads adapters",
                                               "nf4 embedding",
                                               "nf4 layer",
                                               "nf4 head",
                                               "nf4 experts",
                                               "nf4 adapters",
                                               "tokens_all",
                                               "log_probs_all",
                                               "documents",
                                               "k_all",
                                               "v_all",
                                               "dk_all",
                                               "dv_all",
                                               "tokens",
                                               "log_probs",
                                               "x",
                                               "y",
                                               "dx",
                                               "h",
                                               "dh",
                                               "h",
                                               "sum",
                                               "vocabulary terms",
                                               "vocabulary gradient",
                                               "part",
                                               "dx",
                                               "o",
                                               "d_o",
                                               "delta",
                                               "lse",
                                               "delta",
                                               "inner",
                                               "act",
                                               "q",
                                               "k",
                                               "v",
                                               "dq",
                                               "dk",
                                               "dv",
                                               "o",
                                               "d_o",
                                               "o sum",
                                               "delta",
                                               "q",
                                               "k",
                                               "v",
                                               "dq",
                                               "dk",
                                               "dv",
                                               "dqkv",
                                               "routing",
                                               "routed rows",
                                               "routed rows",
                                               "routed rows",
                                               "received rows",
                                               "received rows",
                                               "received rows",
                                               "routing",
                                               "qkv workspace",
                                               "attention workspace",
                                               "mlp workspace",
                                               "mlp workspace",
                                               "output workspace",
                                               "loss workspace",
                                               "vocabulary workspace",
                                               "mlp backward workspace",
                                               "mlp backward workspace",
                                               "mlp backward workspace",
                                               "mlp backward workspace",
                                               "experts workspace",
                                               "experts backward workspace",
                                               "shared experts workspace",
                                               "shared experts backward workspace",
                                               "attention backward workspace",
                                               "qkv backward workspace",
                                               "qkv backward workspace",
                                               "exchange workspace",
                                               "exchange workspace",
                                               "reduction workspace",
                                               "reduction workspace",
                                               "reduction workspace",
                                               "reduction workspace",
                                               "loss",
                                               "grad_norm",
                                               "expert load"};
  static_assert(std::size(names) == kTensorCount);
  return names[static_cast<int>(tensor)];
}

Rows rows_of(Tensor tensor) { return row_kind(tensor); }
bool is_own(Tensor tensor) { return kRowKinds[static_cast<int>(tensor)].own; }
bool is_scattered(Tensor tensor) { return kRowKinds[static_cast<int>(tensor)].scattered; }
bool holds_all_groups(Tensor tensor) { return tensor >= Tensor::o && tensor <= Tensor::delta; }

bool is_state(Tensor tensor) { return tensor <= Tensor::nf4_adapters; }
bool is_nf4(Tensor tensor) {
  return tensor >= Tensor::nf4_embedding && tensor <= Tensor::nf4_adapters;
}
bool is_parameters(Tensor tensor) {
  return tensor <= Tensor::params_adapters ||
         (tensor >= Tensor::params_embedding_shard && tensor <= Tensor::params_adapters_shard);
}
bool is_gradients(Tensor tensor) {
  return (tensor >= Tensor::grads_embedding && tensor <= Tensor::grads_adapters) ||
         (tensor >= Tensor::grads_embedding_shard && tensor <= Tensor::grads_adapters_shard);
}
bool is_shard(Tensor tensor) {
  return tensor >= Tensor::params_embedding_shard && tensor <= Tensor::grads_adapters_shard;
}
UnitKind unit_kind(Tensor tensor) {
  assert(is_state(tensor));
  return static_cast<UnitKind>(static_cast<int>(tensor) % kUnitKinds);
}
bool is_workspace(Tensor tensor) {
  return tensor >= Tensor::ws_qkv_forward && tensor <= Tensor::ws_replicated;
}

Tensor unit_tensor(Tensor first, UnitKind kind) {
  assert(is_state(first) && static_cast<int>(first) % kUnitKinds == 0);
  return static_cast<Tensor>(static_cast<int>(first) + static_cast<int>(kind));
}

int64_t Lengths::rows(Tensor t) const {
  const RowKind kind = kRowKinds[static_cast<int>(t)];
  const int64_t of_kind[] = {0, local_sequence, block, chunk};
  const int64_t whole = of_kind[static_cast<int>(kind.rows)];
  const int64_t share = (kind.own ? ulysses : 1) * (kind.scattered ? tensor : 1);
  return share == 1 ? whole : whole / share;  // avoids the division, the slowest part
}

Lengths lengths_of(const Strategy& s, int64_t sequence) {
  return {sequence / s.parallel.ring, s.block_tokens, s.chunk_tokens,   s.parallel.ulysses,
          s.parallel.tensor,          s.head_groups,  s.parallel.expert};
}

bool streams_keys(const Strategy& s, const Lengths& lengths) {
  return s.kv != Tier::device && lengths.chunks() > 1;
}

bool sums_attention(const Strategy& s, const Lengths& lengths, DType dtype) {
  const bool comes_in_slices = s.parallel.pipeline.slices > 1;
  return dtype != DType::float32 &&
         (streams_keys(s, lengths) || comes_in_slices || s.parallel.ring > 1);
}

GroupHeads group_heads(const ModelSpec& model, const Lengths& lengths) {
  const int64_t kv_share = kv_heads_per_rank(model, lengths.head_shares());
  return {model.heads / lengths.head_groups, std::min(model.kv_heads, lengths.ulysses * kv_share)};
}

int64_t kv_groups(const ModelSpec& model, const Lengths& lengths) {
  return std::min(lengths.head_groups, kv_heads_per_rank(model, lengths.ulysses));
}

TensorBytes tensor_bytes(const ModelSpec& whole, const Lengths& lengths, const Strategy& strategy,
                         DType dtype, int64_t compute_capability) {
  // Copies the model only if it differs: searches call this tens of thousands of times a second.
  const std::optional<ModelSpec> narrow =
      lengths.tensor > 1 ? std::optional(narrow_model(whole, lengths.tensor)) : std::nullopt;
  const ModelSpec& model = narrow ? *narrow : whole;
  TensorBytes table;
  const auto at = [&](Tensor t) -> int64_t& { return table.unit[static_cast<int>(t)]; };
  const int64_t element = size_of(dtype);
  constexpr int64_t f32 = 4;
  const int64_t ulysses = lengths.ulysses, shares = lengths.head_shares();
  const int64_t d = model.hidden, heads = model.heads, attention = model.attention_width();
  const int64_t kv_heads = kv_heads_per_rank(model, shares), attended = model.attended_width();
  const int64_t k_share = kv_heads * model.head_dim, v_share = kv_heads * model.value_dim();
  const GroupHeads group = group_heads(model, lengths);
  const int64_t q_own_width = group.q * model.head_dim;
  const int64_t k_own_width = group.kv * model.head_dim, v_own_width = group.kv * model.value_dim();
  const int64_t inner_width = model.inner_width();

  const auto rows = [&](int64_t row_bytes, std::initializer_list<Tensor> tensors) {
    for (const Tensor t : tensors) {
      table.row[static_cast<int>(t)] = row_bytes;
      at(t) = checked_mul(lengths.rows(t), row_bytes, name_of(t));
    }
  };
  using enum Tensor;
  rows(2 * f32, {tokens_all, tokens});
  rows(f32, {log_probs_all, log_probs});
  rows(f32, {documents});
  rows(k_share * element, {k_all, k});
  rows(v_share * element, {v_all, v});
  rows(k_share * f32, {dk_all, dk});
  rows(v_share * f32, {dv_all, dv});
  rows(d * element, {x, y, dx, h, dh, h_own, sum_own, part, dx_all});
  rows(kVocabularyTerms * f32, {vocabulary_terms});
  rows(2 * d * element, {vocabulary_gradient});
  rows(attended * element, {o, d_o});
  rows(attention / shares * element, {q});
  rows(attended / shares * element, {o_heads, d_o_heads});
  rows(heads * f32, {delta_own});
  rows(heads / ulysses * f32, {lse, delta});
  rows(heads / shares * f32, {delta_heads});
  rows(inner_width * element, {inner});
  rows(model.mlp_width() * element, {act});
  rows(attention / shares * f32, {dq});
  rows(attended / shares * f32, {o_sum});
  rows(q_own_width * element, {q_own});
  rows(k_own_width * element, {k_own});
  rows(v_own_width * element, {v_own});
  rows(q_own_width * f32, {dq_own});
  rows(k_own_width * f32, {dk_own});
  rows(v_own_width * f32, {dv_own});
  rows((attention + model.kv_width() + model.value_width()) * element, {dqkv});

  if (!model.attention) {
    for (const Tensor t :
         {k_all, v_all, k,     v,       dk_all,    dv_all,    dk,     dv,     y,
          o,     d_o,   q,     o_heads, d_o_heads, delta_own, lse,    delta,  delta_heads,
          dq,    o_sum, q_own, k_own,   v_own,     dq_own,    dk_own, dv_own, dqkv}) {
      at(t) = table.row[static_cast<int>(t)] = 0;
    }
  }

  using Units = std::array<int64_t, kUnitKinds>;
  const auto set_units = [&](Tensor first, const Units& elements, int64_t bytes) {
    for (int i = 0; i < kUnitKinds; ++i) {
      table.unit[static_cast<int>(first) + i] = checked_mul(elements[i], bytes, name_of(first));
    }
  };
  const auto [embedding, layer, head] = unit_elements(model);
  Units elements{embedding, layer, head, experts_elements(model) / lengths.expert,
                 adapter_elements(model)},
      shard{};
  for (int i = 0; i < kUnitKinds; ++i) {
    const int64_t shards = strategy.parallel.shards(static_cast<UnitKind>(i));
    // A sharded unit is padded, so that all shards are equal.
    shard[i] = shards > 1 ? round_up(ceil_div(elements[i], shards), kShardAlignment) : elements[i];
    elements[i] = checked_mul(shard[i], shards, "parameters");
  }
  set_units(params_embedding, elements, element);
  set_units(params_embedding_shard, shard, element);
  if (model.nf4) {
    const auto [plain_of_layer, plain_of_experts] = plain_elements(model);
    at(nf4_layer) = nf4_bytes(layer - plain_of_layer, plain_of_layer, element);
    at(nf4_experts) =
        nf4_bytes(experts_elements(model) - plain_of_experts, plain_of_experts, element);
  }
  // Frozen units have no other state.
  for (int i = 0; i < kUnitKinds; ++i) {
    if (!trains(model, static_cast<UnitKind>(i))) elements[i] = shard[i] = 0;
  }
  set_units(grads_embedding, elements, f32);
  for (const Tensor first : {master_embedding, grads_embedding_shard}) {
    set_units(first, shard, f32);
  }
  Units moments{};
  for (int i = 0; i < kUnitKinds; ++i) moments[i] = moment_bytes(strategy.moments, shard[i]);
  for (const Tensor first : {adam_m_embedding, adam_v_embedding}) set_units(first, moments, 1);

  if (model.experts && lengths.expert > 1) {
    const ExpertTileBytes tile = bytes_of_expert_tile(model, lengths, strategy, dtype);
    at(routing) = tile.routing;
    at(routed) = at(routed_gradients) = tile.routed;
    at(routed_weights) = tile.routed_weights;
    at(received) = at(received_gradients) = tile.received;
    at(received_weights) = tile.received_weights;
    at(arrivals) = tile.arrivals;
    at(ws_experts_forward) = tile.experts_forward;
    at(ws_experts_backward) = tile.experts_backward;
    at(ws_shared_forward) = tile.shared_forward;
    at(ws_shared_backward) = tile.shared_backward;
  }

  const Workspaces ws = workspaces(model, lengths, strategy, dtype, compute_capability);
  at(ws_qkv_forward) = ws.qkv_forward;
  at(ws_attention_forward) = ws.attention_forward;
  at(ws_mlp_forward) = ws.mlp_forward;
  at(ws_mlp_forward_saving) = ws.mlp_forward_saving;
  at(ws_out) = ws.out;
  at(ws_loss) = ws.loss;
  at(ws_vocabulary) = ws.vocabulary;
  at(ws_mlp_backward) = ws.mlp_backward;
  at(ws_mlp_backward_saved) = ws.mlp_backward_saved;
  at(ws_mlp_backward_input) = ws.mlp_backward_input;
  at(ws_mlp_backward_weight) = ws.mlp_backward_weight;
  at(ws_attention_backward) = ws.attention_backward;
  at(ws_qkv_backward) = ws.qkv_backward;
  at(ws_qkv_backward_input) = ws.qkv_backward_input;
  at(ws_exchange) = ws.exchange;
  at(ws_exchange_queries) = ws.exchange_queries;
  at(ws_reduce) = ws.reduce;
  at(ws_reduce_ends) = ws.reduce_ends;
  at(ws_scatter) = ws.scatter;
  at(ws_replicated) = ws.replicated;
  at(loss) = at(grad_norm) = 8;
  if (has_auxiliary_loss(model)) at(expert_load) = 2 * model.experts->count * 8;
  return table;
}

}  // namespace longspan
