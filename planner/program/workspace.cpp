#include "planner/program/workspace.h"

#include <algorithm>

#include "base/units.h"
#include "models/adapters.h"
#include "models/training.h"
#include "planner/program/attention_workspace.h"
#include "planner/program/casts.h"
#include "planner/program/key_window.h"

namespace longspan {
namespace {

// Progress counters per K,V head in attention's backward on the CPU (float32).
constexpr int64_t kAttentionBackwardCounters = 64;
// The largest piece that a reduction takes at a time from each of the other ranks.
constexpr int64_t kReducePiece = 256 * 1024;

int64_t tile_of(int64_t tile, int64_t rows) { return tile > 0 ? std::min(tile, rows) : rows; }

// Bytes for a piece from each other member of a group that sums `count` elements of `bytes`.
int64_t pieces(int64_t members, int64_t count, int64_t bytes) {
  if (members == 1) return 0;
  const int64_t share = round_up(ceil_div(count, members), 64);
  return checked_mul(members - 1, std::min(kReducePiece, std::min(kReducePiece, share) * bytes),
                     "workspace");
}

// Parameters that make the narrow vectors of latent attention.
int64_t narrow_elements(const ModelSpec& m) {
  const LatentAttention& l = *m.latent;
  return (l.query_rank + l.key_rank + l.rotated_dim) * m.hidden + l.query_rank + l.key_rank;
}

// Parameters that make queries, keys and values, without biases and norms of heads.
int64_t qkv_elements(const ModelSpec& m) {
  const auto mul = [](int64_t a, int64_t b) { return checked_mul(a, b, "parameters"); };
  if (!m.latent) return mul(m.attention_width() + m.kv_width() + m.value_width(), m.hidden);
  const LatentAttention& l = *m.latent;
  const int64_t of_keys = m.heads * (m.head_dim - l.rotated_dim + l.value_dim);
  return narrow_elements(m) + mul(of_keys, l.key_rank) +
         mul(m.attention_width(), l.query_rank > 0 ? l.query_rank : m.hidden);
}

}  // namespace

std::array<int64_t, 3> unit_elements(const ModelSpec& m) {
  const auto mul = [](int64_t a, int64_t b) { return checked_mul(a, b, "parameters"); };
  const int64_t norm = m.norm == Norm::layernorm ? 2 * m.hidden : m.hidden;
  const int64_t table = mul(m.vocab, m.hidden);
  const int64_t embedding =
      table + (m.positions == Positions::learned ? mul(m.max_positions, m.hidden) : 0);

  const int64_t attention = m.attention_width(), qkv = attention + 2 * m.kv_width();
  const int64_t norms = m.norm_placement == NormPlacement::both ? 2 * norm : norm;
  const int64_t inner = m.gated() ? 2 * m.ffn : m.ffn;
  int64_t layer = norms;
  if (m.experts) {
    const Experts& e = *m.experts;
    layer += mul(e.count, m.hidden) + (e.router_bias ? e.count : 0);
    layer += e.selection_bias ? e.count : 0;
    layer += mul((m.gated() ? 3 : 2) * e.shared_ffn, m.hidden) + (e.shared_gate ? m.hidden : 0);
  } else {
    layer += mul(inner + m.ffn, m.hidden);
    if (m.mlp_bias) layer += inner + m.hidden;
  }
  if (m.attention) {
    layer += norms + qkv_elements(m) + mul(m.attended_width(), m.hidden);
    if (m.qkv_bias) layer += qkv;
    if (m.qk_norm) layer += m.qk_norm_of_token ? attention + m.kv_width() : 2 * m.head_dim;
    if (m.attention_sinks) layer += m.heads;
    if (m.attention_out_bias) layer += m.hidden;
  }

  const int64_t head = norm + (m.tied_embeddings ? 0 : table);
  return {embedding, layer, head};
}

int64_t experts_elements(const ModelSpec& m) {
  if (!m.experts) return 0;
  const auto mul = [](int64_t a, int64_t b) { return checked_mul(a, b, "parameters"); };
  const Experts& e = *m.experts;
  const int64_t inner = m.gated() ? 2 * e.ffn : e.ffn;
  const int64_t matrices = mul(e.count, mul(inner + e.ffn, m.hidden));
  return m.mlp_bias ? matrices + mul(e.count, inner + m.hidden) : matrices;
}

std::array<int64_t, 2> plain_elements(const ModelSpec& m) {
  const int64_t norm = m.norm == Norm::layernorm ? 2 * m.hidden : m.hidden;
  const int64_t norms = m.norm_placement == NormPlacement::both ? 2 * norm : norm;
  int64_t layer = norms, experts = 0;
  if (m.attention) {
    layer += norms;
    if (m.qkv_bias) layer += m.attention_width() + 2 * m.kv_width();
    if (m.qk_norm) {
      layer += m.qk_norm_of_token ? m.attention_width() + m.kv_width() : 2 * m.head_dim;
    }
    if (m.attention_sinks) layer += m.heads;
    if (m.attention_out_bias) layer += m.hidden;
  }
  if (m.experts) {
    const Experts& e = *m.experts;
    layer += (e.router_bias ? e.count : 0) + (e.selection_bias ? e.count : 0);
    if (m.mlp_bias) experts = e.count * ((m.gated() ? 2 * e.ffn : e.ffn) + m.hidden);
  } else if (m.mlp_bias) {
    layer += (m.gated() ? 2 * m.ffn : m.ffn) + m.hidden;
  }
  return {layer, experts};
}

int64_t routing_width(const Experts& e) {
  // A multiple of 16 bytes.
  return round_up(e.count + 5 * e.active + 2, 4);
}

std::array<int64_t, 3> replicated_elements(const ModelSpec& m) {
  const std::array<int64_t, 3> all = unit_elements(m);
  const int64_t norm = m.norm == Norm::layernorm ? 2 * m.hidden : m.hidden;
  const int64_t norms = m.norm_placement == NormPlacement::both ? 2 * norm : norm;
  int64_t layer = norms;
  if (m.attention) {
    layer += norms;
    if (m.qk_norm)
      layer += m.qk_norm_of_token ? m.attention_width() + m.kv_width() : 2 * m.head_dim;
    if (m.attention_out_bias) layer += m.hidden;
    if (m.latent) layer += narrow_elements(m);
  }
  if (m.experts) {
    const Experts& e = *m.experts;
    layer += e.count * m.hidden + (e.router_bias ? e.count : 0) + (e.selection_bias ? e.count : 0);
    if (e.shared_gate) layer += m.hidden;
  } else if (m.mlp_bias) {
    layer += m.hidden;
  }
  return {all[0], layer, all[2]};
}

AdapterWidths adapter_widths(const ModelSpec& m) {
  using enum Projection;
  AdapterWidths widths;
  if (!m.adapters) return widths;
  const auto width = [&](int64_t adapters) {
    return adapters == 0 ? 0 : (1 + adapters) * m.adapters->rank;
  };
  widths.rank = m.adapters->rank;
  widths.qkv = width(adapter_count(m, {q, k, v}));
  widths.out = width(adapter_count(m, {out}));
  widths.mlp = width(std::max(adapter_count(m, {gate, up}), adapter_count(m, {down})));
  return widths;
}

int64_t copies_of(const ModelSpec& m, const Lengths& lengths, const Strategy& s, OpKind kind,
                  bool has_inner) {
  using enum OpKind;
  if (!casts_operands(s)) return 0;
  const bool of_mlp = kind == mlp_forward || kind == mlp_backward || kind == mlp_backward_input ||
                      kind == mlp_backward_weight;
  const bool of_out = kind == out_forward || kind == out_backward || kind == out_backward_input ||
                      kind == out_backward_weight;
  const int64_t rows = of_mlp   ? tile_of(s.mlp_tile, lengths.dense_block())
                       : of_out ? tile_of(s.projection_tile, lengths.dense_block())
                                : tile_of(s.projection_tile, lengths.own_chunk());
  OpShape shape;
  shape.kind = kind;
  shape.partial = lengths.tensor > 1;
  shape.saves_inner = has_inner;
  return casts_of(m, lengths, 1, s.products, shape, rows).bytes();
}

namespace {

// Adds the copies of products' operands below 16 bits to the workspaces of ops that have them.
void add_copies(const ModelSpec& m, const Lengths& lengths, const Strategy& s, Workspaces& ws) {
  using enum OpKind;
  const auto grow = [&](int64_t& workspace, std::initializer_list<OpKind> ops,
                        bool has_inner = false) {
    int64_t most = 0;
    for (const OpKind kind : ops) most = std::max(most, copies_of(m, lengths, s, kind, has_inner));
    workspace = checked_add(workspace, most, "workspace");
  };
  grow(ws.qkv_forward, {qkv_forward});
  grow(ws.qkv_backward, {qkv_backward});
  grow(ws.out, {out_forward, out_backward});
  grow(ws.mlp_forward, {mlp_forward});
  grow(ws.mlp_forward_saving, {mlp_forward});
  grow(ws.mlp_backward, {mlp_backward});
  grow(ws.mlp_backward_saved, {mlp_backward}, true);
  if (m.latent || m.norms_outputs()) return;  // no split backward
  grow(ws.qkv_backward_input, {qkv_backward_input, qkv_backward_weight});
  grow(ws.mlp_backward_input, {mlp_backward_input});
  grow(ws.mlp_backward_weight, {mlp_backward_weight});
}

}  // namespace

Workspaces workspaces(const ModelSpec& m, const Lengths& lengths, const Strategy& s, DType dtype,
                      int64_t compute_capability) {
  const int64_t act = size_of(dtype);
  const int64_t d = m.hidden, f = m.mlp_width(), w = m.inner_width();
  // With experts: the rows that they take and give, and what routes them.
  const int64_t routed = m.experts ? m.experts->active * d : 0;
  const int64_t routing = m.experts ? routing_width(*m.experts) * 4 / act : 0;
  const int64_t qkv_rows = tile_of(s.projection_tile, lengths.own_chunk());
  const int64_t mlp_rows = tile_of(s.mlp_tile, lengths.dense_block());
  const int64_t loss_rows = tile_of(s.loss_tile, lengths.own_block());
  const int64_t ulysses = lengths.ulysses, tensor = lengths.tensor;
  const int64_t kv_heads = kv_heads_per_rank(m, lengths.head_shares());
  const int64_t q_width = group_heads(m, lengths).q * m.head_dim;
  const auto bytes = [&](int64_t rows, int64_t width) {
    return checked_mul(rows, checked_mul(width, act, "workspace"), "workspace");
  };
  const AdapterWidths low = adapter_widths(m);
  Workspaces ws;
  const int64_t input = m.norms_inputs() ? d : 0, output = m.norms_outputs() ? d : 0;
  const int64_t narrow =
      m.latent ? m.latent->query_rank + m.latent->key_rank + m.latent->rotated_dim : 0;
  ws.qkv_forward = bytes(qkv_rows, input + narrow + low.forward(low.qkv));
  // In a tensor group norms are ops of their own.
  const int64_t rows = (tensor > 1 ? 0 : d) + routed + routing;
  const int64_t rows_back = (tensor > 1 ? 0 : input + output) + routed + routing;
  ws.out =
      tensor > 1 ? 0 : bytes(tile_of(s.projection_tile, lengths.dense_block()), output + low.out);
  ws.mlp_forward = bytes(mlp_rows, rows + w + f + low.forward(low.mlp));
  ws.mlp_forward_saving = bytes(mlp_rows, rows + f + low.forward(low.mlp));
  ws.loss = bytes(loss_rows, (s.forward_only ? d : 2 * d) + m.vocab);
  ws.vocabulary = bytes(loss_rows, m.vocab);
  // The gradients of activations overwrite these, but weights of experts need both.
  const int64_t acts = m.experts ? 2 * f : f;
  ws.mlp_backward = bytes(mlp_rows, rows_back + w + acts + low.mlp);
  ws.mlp_backward_saved = bytes(mlp_rows, rows_back + acts + low.mlp);
  ws.mlp_backward_input = bytes(mlp_rows, routed + routing + f);
  ws.mlp_backward_weight = bytes(mlp_rows, routed + routing);
  // The narrow vectors and their gradients.
  ws.qkv_backward = bytes(qkv_rows, input + 2 * narrow + (m.qk_norm ? q_width : 0) + low.qkv);
  ws.qkv_backward_input = bytes(qkv_rows, m.qk_norm ? q_width : 0);
  if (dtype == DType::float32) {
    ws.attention_backward = checked_mul(kv_heads, kAttentionBackwardCounters * 4, "workspace");
  } else {
    const int64_t queries = m.of_sequence(lengths.chunk);
    AttentionCall call{
        m.heads / lengths.head_shares(),       kv_heads,        m.head_dim,         queries,
        m.of_sequence(lengths.local_sequence), s.deterministic, compute_capability, 0,
        m.latent ? m.latent->value_dim : 0};
    const auto take = [&] {
      const bool sums = sums_attention(s, lengths, dtype);
      ws.attention_forward =
          std::max(ws.attention_forward, attention_forward_workspace(call, sums).bytes());
      ws.attention_backward = std::max(ws.attention_backward,
                                       attention_backward_workspace(backward_tile(call)).bytes());
    };
    // Spans of a chunk are attended to apart, of which the last may be shorter.
    const int64_t part = attended_part(m, queries);
    for (const int64_t rows : {part, queries % part}) {
      if (part < queries) call.queries = call.keys = rows;
      if (rows > 0) take();
    }
    if (m.window > 0) {  // of keys that it cuts
      call.window = m.window;
      ws.attention_backward = std::max(ws.attention_backward,
                                       attention_backward_workspace(backward_tile(call)).bytes());
    }
  }
  if (ulysses > 1) {
    const int64_t other_rows = checked_mul(ulysses - 1, lengths.own_chunk(), "workspace");
    const int64_t q_share = q_width / ulysses, kv_share = kv_heads * (m.head_dim + m.value_dim());
    const int64_t q_bytes = q_share * 4;  // float32, as dq is the widest
    const int64_t heads = m.heads / lengths.head_shares();
    const int64_t d_o_bytes = heads * (m.value_dim() * act + 4);
    ws.exchange = checked_mul(other_rows, q_bytes + kv_share * 4, "workspace");
    ws.exchange_queries = checked_mul(other_rows, std::max(q_bytes, d_o_bytes), "workspace");
  }
  const auto largest = [](const auto& elements) {
    return *std::max_element(elements.begin(), elements.end());
  };
  const std::array<int64_t, 3> units = unit_elements(m);
  const auto sums = [&](ParameterUnit::Kind kind, int64_t elements) {
    if (!trains(m, kind)) return;
    ws.reduce = std::max(ws.reduce, pieces(s.parallel.replicas(kind), elements, 4));
  };
  sums(ParameterUnit::Kind::embedding, units[0]);
  sums(ParameterUnit::Kind::layer, units[1]);
  sums(ParameterUnit::Kind::head, units[2]);
  sums(ParameterUnit::Kind::experts, experts_elements(m) / lengths.expert);
  sums(ParameterUnit::Kind::adapters, adapter_elements(m));
  ws.reduce_ends = pieces(2, unit_elements(m)[0], 4);
  if (tensor > 1) {
    ws.scatter = pieces(tensor, checked_mul(lengths.dense_block(), d, "workspace"), act);
    const std::array<int64_t, 3> replicated = replicated_elements(m);
    ws.replicated =
        checked_add(4 * replicated[1], pieces(tensor, largest(replicated), 4), "workspace");
  }
  if (casts_operands(s)) add_copies(m, lengths, s, ws);
  return ws;
}

}  // namespace longspan
