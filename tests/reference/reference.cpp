#include "tests/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "tests/reference/experts.h"
#include "tests/reference/ops.h"

namespace longspan::reference {
namespace {

/// Hands out the parameters of one unit in the order that ModelSpec describes.
class UnitReader {
 public:
  UnitReader(const std::vector<double>& values, std::vector<double>* gradients)
      : values_(values), gradients_(gradients) {}

  Parameter take(int64_t elements, bool present = true) {
    if (!present) return {};
    const int64_t at = next_;
    next_ += elements;
    if (next_ > static_cast<int64_t>(values_.size()))
      throw failed("reference: a unit is too small");
    return {values_.data() + at, gradients_ ? gradients_->data() + at : nullptr};
  }
  void finish() const {
    if (next_ != static_cast<int64_t>(values_.size())) throw failed("reference: a unit is too big");
  }

 private:
  const std::vector<double>& values_;
  std::vector<double>* gradients_;
  int64_t next_ = 0;
};

// An adapter of a projection: y += scale (x A^T) B^T.
struct AdapterParameters {
  Parameter a, b;
  int64_t rank = 0;
  double scale = 0;
};

struct LayerParameters {
  AdapterParameters adapters[kProjections];
  Parameter norm1, norm1_bias, wq, wk, wv, bq, bk, bv, q_norm, k_norm, wo, bo, sinks;
  Parameter norm2, norm2_bias, gate, up, up_bias, down, down_bias;
  // Norms of the outputs of attention and the MLP. Without norms of inputs they are in the places
  // of norm1 and norm2.
  Parameter out_norm1, out_norm1_bias, out_norm2, out_norm2_bias;
  ExpertsParameters experts;
  bool has_experts = false;
  int64_t ffn = 0;
  bool attends = true;
  int64_t window = 0, span = 0;
  std::vector<int64_t> tokens;  // that the layer works on
  std::vector<double> frequencies;
  double magnitude = 1;
};

// Router and shared experts, of the layer's own unit.
ExpertsParameters router_parameters(const ModelSpec& m, UnitReader& unit) {
  const Experts& e = *m.experts;
  const int64_t d = m.hidden, shared = e.shared_ffn;
  ExpertsParameters p;
  p.router = unit.take(e.count * d);
  p.router_bias = unit.take(e.count, e.router_bias);
  p.selection_bias = unit.take(e.count, e.selection_bias);
  p.shared_gate = unit.take(shared * d, shared > 0 && m.gated());
  p.shared_up = unit.take(shared * d, shared > 0);
  p.shared_down = unit.take(shared * d, shared > 0);
  p.gate = unit.take(d, e.shared_gate);
  return p;
}

// The unit of a layer's experts.
void take_experts(const ModelSpec& m, UnitReader unit, ExpertsParameters& p) {
  const Experts& e = *m.experts;
  const int64_t inner = m.gated() ? 2 * e.ffn : e.ffn;
  p.up = unit.take(e.count * inner * m.hidden);
  p.up_bias = unit.take(e.count * inner, m.mlp_bias);
  p.down = unit.take(e.count * m.hidden * e.ffn);
  p.down_bias = unit.take(e.count * m.hidden, m.mlp_bias);
  unit.finish();
}

// The unit of a layer's adapters.
void take_adapters(const ModelSpec& m, UnitReader unit, LayerParameters& p) {
  const int64_t d = m.hidden, a = m.attention_width(), g = m.kv_width();
  const int64_t in[kProjections] = {d, d, d, a, d, d, p.ffn};
  const int64_t out[kProjections] = {a, g, g, d, p.ffn, p.ffn, d};
  for (int i = 0; i < kProjections; ++i) {
    const bool of_attention = i < 4, of_gate = i == 4;
    if (!m.adapters->on[i] || (of_attention && !p.attends)) continue;
    if (!of_attention && p.has_experts) continue;
    if (of_gate && m.activation == Activation::gelu) continue;
    AdapterParameters& adapter = p.adapters[i];
    adapter.rank = m.adapters->rank;
    adapter.scale = m.adapters->alpha / static_cast<double>(adapter.rank);
    adapter.a = unit.take(adapter.rank * in[i]);
    adapter.b = unit.take(out[i] * adapter.rank);
  }
  unit.finish();
}

Matrix adapted(const Matrix& x, Parameter w, Parameter b, const AdapterParameters& adapter,
               int64_t rows, int64_t in, int64_t out) {
  Matrix y = linear(x, w, b, rows, in, out);
  if (adapter.rank == 0) return y;
  const Matrix low = linear(x, adapter.a, {}, rows, in, adapter.rank);
  const Matrix more = linear(low, adapter.b, {}, rows, adapter.rank, out);
  for (size_t i = 0; i < y.size(); ++i) y[i] += adapter.scale * more[i];
  return y;
}

void adapted_backward(const Matrix& x, Parameter w, Parameter b, const AdapterParameters& adapter,
                      const Matrix& dy, Matrix& dx, int64_t rows, int64_t in, int64_t out) {
  linear_backward(x, w, b, dy, dx, rows, in, out);
  if (adapter.rank == 0) return;
  const Matrix low = linear(x, adapter.a, {}, rows, in, adapter.rank);
  Matrix scaled = dy, dlow(low.size());
  for (double& value : scaled) value *= adapter.scale;
  linear_backward(low, adapter.b, {}, scaled, dlow, rows, adapter.rank, out);
  linear_backward(x, adapter.a, {}, dlow, dx, rows, in, adapter.rank);
}

const AdapterParameters& of(const LayerParameters& p, Projection projection) {
  return p.adapters[static_cast<size_t>(projection)];
}

LayerParameters layer_parameters(const ModelSpec& m, const LayerRun& run, UnitReader unit) {
  const int64_t d = m.hidden;
  const int64_t a = m.attention_width();
  const int64_t g = m.kv_width();
  const bool centred = m.norm == Norm::layernorm;
  const bool gated = m.activation != Activation::gelu;
  const bool both = m.norm_placement == NormPlacement::both;
  const bool of_token = m.qk_norm_of_token;
  LayerParameters p;
  p.ffn = run.ffn;
  p.attends = run.attention;
  p.window = run.window;
  p.span = run.span;
  if (run.attention) {
    p.norm1 = unit.take(d);
    p.norm1_bias = unit.take(d, centred);
    p.wq = unit.take(a * d);
    p.wk = unit.take(g * d);
    p.wv = unit.take(g * d);
    p.bq = unit.take(a, m.qkv_bias);
    p.bk = unit.take(g, m.qkv_bias);
    p.bv = unit.take(g, m.qkv_bias);
    p.q_norm = unit.take(of_token ? a : m.head_dim, m.qk_norm);
    p.k_norm = unit.take(of_token ? g : m.head_dim, m.qk_norm);
    p.wo = unit.take(d * a);
    p.bo = unit.take(d, m.attention_out_bias);
    p.sinks = unit.take(m.heads, m.attention_sinks);
    p.out_norm1 = unit.take(d, both);
    p.out_norm1_bias = unit.take(d, both && centred);
  }
  p.norm2 = unit.take(d);
  p.norm2_bias = unit.take(d, centred);
  p.has_experts = run.experts;
  if (run.experts) {
    p.experts = router_parameters(m, unit);
  } else {
    p.gate = unit.take(run.ffn * d, gated);
    p.up = unit.take(run.ffn * d);
    p.up_bias = unit.take(run.ffn, m.mlp_bias);
    p.down = unit.take(d * run.ffn);
    p.down_bias = unit.take(d, m.mlp_bias);
  }
  p.out_norm2 = unit.take(d, both);
  p.out_norm2_bias = unit.take(d, both && centred);
  unit.finish();
  if (m.norm_placement == NormPlacement::output) {
    std::swap(p.norm1, p.out_norm1);
    std::swap(p.norm1_bias, p.out_norm1_bias);
    std::swap(p.norm2, p.out_norm2);
    std::swap(p.norm2_bias, p.out_norm2_bias);
  }
  return p;
}

/// Tensors that the forward of one layer saves for its backward.
struct LayerValues {
  Matrix input, normed1, q_raw, k_raw, q, k, v, attended, projected, middle, normed2, gate, up,
      inner, output;  // projected and output: of attention and the MLP, before their norms
};

class Model {
 public:
  Model(const ModelSpec& spec, const std::vector<std::vector<double>>& parameters,
        const std::vector<int32_t>& tokens, std::vector<std::vector<double>>* gradients)
      : m_(spec), tokens_(tokens), rows_(static_cast<int64_t>(tokens.size()) - 1) {
    check(parameters);
    const auto reader = [&](size_t unit) {
      return UnitReader(parameters[unit], gradients ? &(*gradients)[unit] : nullptr);
    };
    UnitReader embedding = reader(0);
    table_ = embedding.take(m_.vocab * m_.hidden);
    positions_ = embedding.take(m_.max_positions * m_.hidden, m_.positions == Positions::learned);
    embedding.finish();
    LayerRun all{m_.layers, m_.attention, m_.ffn, 1, m_.window, m_.experts.has_value()};
    all.span = m_.span;
    for (const LayerRun& run : m_.uniform() ? std::vector<LayerRun>{all} : m_.runs) {
      for (int64_t i = 0; i < run.layers; ++i) {
        layers_.push_back(layer_parameters(m_, run, reader(layers_.size() + 1)));
        layers_.back().tokens = tokens_of_share(run.tokens);
        set_rotation(run.positions, layers_.back());
      }
    }
    size_t unit = m_.layers + 2;
    for (LayerParameters& layer : layers_) {
      if (layer.has_experts) take_experts(m_, reader(unit++), layer.experts);
    }
    for (LayerParameters& layer : layers_) {
      if (m_.adapters) take_adapters(m_, reader(unit++), layer);
    }
    UnitReader head = reader(m_.layers + 1);
    final_norm_ = head.take(m_.hidden);
    final_norm_bias_ = head.take(m_.hidden, m_.norm == Norm::layernorm);
    output_ = m_.tied_embeddings ? table_ : head.take(m_.vocab * m_.hidden);
    head.finish();
  }

  double forward() {
    Matrix x = embed();
    for (const LayerParameters& p : layers_) put(layer_forward(p, taken(x, p)), p, x);
    last_ = std::move(x);
    normed_ = normalize(norm(), last_, final_norm_, final_norm_bias_);
    logits_ = linear(normed_, output_, {}, rows_, m_.hidden, m_.vocab);
    const double loss = cross_entropy(logits_, &tokens_[1], rows_, m_.vocab, nullptr);
    return balances() ? loss + auxiliary_loss(*m_.experts, load_) : loss;
  }

  /// REQUIRES: forward() ran.
  void backward() {
    Matrix dlogits;
    cross_entropy(logits_, &tokens_[1], rows_, m_.vocab, &dlogits);
    if (balances()) auxiliary_ = auxiliary_gradients(*m_.experts, load_);
    Matrix dnormed(normed_.size());
    linear_backward(normed_, output_, {}, dlogits, dnormed, rows_, m_.hidden, m_.vocab);
    Matrix dx(last_.size());
    normalize_backward(norm(), last_, final_norm_, final_norm_bias_, dnormed, dx);
    for (int64_t l = m_.layers - 1; l >= 0; --l) {
      put(layer_backward(layers_[l], values_[l], taken(dx, layers_[l])), layers_[l], dx);
    }
    embed_backward(dx);
  }

 private:
  bool balances() const { return load_.tokens > 0 && m_.experts->auxiliary_loss > 0; }
  void check(const std::vector<std::vector<double>>& parameters) const {
    const std::vector<ParameterUnit> units = parameter_units(m_);
    bool fits = units.size() == parameters.size();
    for (size_t i = 0; fits && i < units.size(); ++i) {
      fits = static_cast<int64_t>(parameters[i].size()) == units[i].elements;
    }
    if (!fits) throw bad_input("reference: the parameters do not have the sizes of the model");
    if (rows_ < 1) throw bad_input("reference: needs at least two tokens");
    if (m_.positions == Positions::learned && rows_ > m_.max_positions) {
      throw bad_input("reference: {} tokens, but {} positions", rows_, m_.max_positions);
    }
    for (const int32_t id : tokens_) {
      if (id < 0 || id >= m_.vocab) throw bad_input("reference: token id {} is out of range", id);
    }
  }

  Matrix embed() const {
    const int64_t d = m_.hidden;
    Matrix x(rows_ * d);
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t i = 0; i < d; ++i) {
        x[t * d + i] = m_.embedding_scale * table_.value[tokens_[t] * d + i];
        if (positions_.value) x[t * d + i] += positions_.value[t * d + i];
      }
    }
    return x;
  }

  void embed_backward(const Matrix& dx) const {
    const int64_t d = m_.hidden;
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t i = 0; i < d; ++i) {
        table_.gradient[tokens_[t] * d + i] += m_.embedding_scale * dx[t * d + i];
        if (positions_.gradient) positions_.gradient[t * d + i] += dx[t * d + i];
      }
    }
  }

  Heads heads(const LayerParameters& p) const {
    const double usual = 1 / std::sqrt(static_cast<double>(m_.head_dim));
    return {static_cast<int64_t>(p.tokens.size()),
            m_.heads,
            m_.kv_heads,
            m_.head_dim,
            m_.attention_scale != 0 ? m_.attention_scale : usual,
            p.window,
            p.span};
  }

  void set_rotation(LayerPositions positions, LayerParameters& p) const {
    if (m_.positions != Positions::rope || positions == LayerPositions::none) return;
    const auto rotated =
        static_cast<int64_t>(std::lround(m_.rotary_share * static_cast<double>(m_.head_dim)));
    const bool local = positions == LayerPositions::local;
    const std::optional<RopeScaling> scaling = local ? std::nullopt : m_.rope_scaling;
    p.frequencies = rope_frequencies(rotated, local ? m_.local_rope_theta : m_.rope_theta, scaling);
    p.magnitude = magnitude(scaling);
  }
  void turn(Matrix& x, int64_t heads, const LayerParameters& p, int direction) const {
    rotate(x, heads, m_.head_dim, p.frequencies, direction, p.magnitude, &p.tokens);
  }

  /// The tokens of a share: 0, 1/share, 2/share, ..., rounded down.
  std::vector<int64_t> tokens_of_share(double share) const {
    std::vector<int64_t> tokens;
    for (int64_t i = 0;; ++i) {
      const auto token = static_cast<int64_t>(std::floor(static_cast<double>(i) / share + 1e-9));
      if (token >= rows_) return tokens;
      tokens.push_back(token);
    }
  }
  /// The rows of x that a layer works on; all others bypass it.
  Matrix taken(const Matrix& x, const LayerParameters& p) const {
    Matrix rows;
    for (const int64_t token : p.tokens) {
      rows.insert(rows.end(), x.begin() + token * m_.hidden, x.begin() + (token + 1) * m_.hidden);
    }
    return rows;
  }
  void put(const Matrix& rows, const LayerParameters& p, Matrix& x) const {
    auto from = rows.begin();
    for (const int64_t token : p.tokens) {
      std::copy(from, from + m_.hidden, x.begin() + token * m_.hidden);
      from += m_.hidden;
    }
  }

  NormShape norm() const { return {m_.norm, m_.hidden, m_.norm_eps, m_.norm_offset ? 1.0 : 0.0}; }
  /// The norm of q or k with `heads` heads.
  NormShape head_norm(int64_t heads) const {
    const int64_t width = (m_.qk_norm_of_token ? heads : 1) * m_.head_dim;
    return {Norm::rmsnorm, width, m_.norm_eps, m_.norm_offset ? 1.0 : 0.0};
  }
  /// A norm where there is one.
  Matrix normed(const Matrix& x, Parameter w, Parameter b) const {
    return w.value ? normalize(norm(), x, w, b) : x;
  }
  void normed_backward(const Matrix& x, Parameter w, Parameter b, const Matrix& dy,
                       Matrix& dx) const {
    if (w.value) return normalize_backward(norm(), x, w, b, dy, dx);
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += dy[i];
  }

  Matrix layer_forward(const LayerParameters& p, Matrix input) {
    const auto rows = static_cast<int64_t>(p.tokens.size());
    const int64_t d = m_.hidden;
    LayerValues s;
    s.input = std::move(input);
    s.middle = s.input;
    if (p.attends) attend(p, s);

    s.normed2 = normed(s.middle, p.norm2, p.norm2_bias);
    if (p.has_experts) {
      Matrix output = experts(m_, p.experts, s.normed2, rows, load_);
      for (size_t i = 0; i < output.size(); ++i) output[i] += s.middle[i];
      values_.push_back(std::move(s));
      return output;
    }
    s.up = adapted(s.normed2, p.up, p.up_bias, of(p, Projection::up), rows, d, p.ffn);
    s.gate.resize(s.up.size());
    if (p.gate.value)
      s.gate = adapted(s.normed2, p.gate, {}, of(p, Projection::gate), rows, d, p.ffn);
    s.inner.resize(s.up.size());
    for (size_t i = 0; i < s.inner.size(); ++i) {
      s.inner[i] = activate(m_.activation, s.gate[i], s.up[i]).value;
    }
    s.output = adapted(s.inner, p.down, p.down_bias, of(p, Projection::down), rows, p.ffn, d);
    Matrix output = normed(s.output, p.out_norm2, p.out_norm2_bias);
    for (size_t i = 0; i < output.size(); ++i) output[i] += s.middle[i];
    values_.push_back(std::move(s));
    return output;
  }

  /// Adds attention to s.middle.
  void attend(const LayerParameters& p, LayerValues& s) const {
    const auto rows = static_cast<int64_t>(p.tokens.size());
    const int64_t d = m_.hidden;
    const int64_t a = m_.attention_width();
    const int64_t g = m_.kv_width();
    s.normed1 = normed(s.input, p.norm1, p.norm1_bias);
    s.q_raw = adapted(s.normed1, p.wq, p.bq, of(p, Projection::q), rows, d, a);
    s.k_raw = adapted(s.normed1, p.wk, p.bk, of(p, Projection::k), rows, d, g);
    s.v = adapted(s.normed1, p.wv, p.bv, of(p, Projection::v), rows, d, g);
    s.q = s.q_raw;
    s.k = s.k_raw;
    if (m_.qk_norm) {
      s.q = normalize(head_norm(m_.heads), s.q_raw, p.q_norm, {});
      s.k = normalize(head_norm(m_.kv_heads), s.k_raw, p.k_norm, {});
    }
    turn(s.q, m_.heads, p, +1);
    turn(s.k, m_.kv_heads, p, +1);
    s.attended = attention(s.q, s.k, s.v, heads(p), p.sinks);
    s.projected = adapted(s.attended, p.wo, p.bo, of(p, Projection::out), rows, a, d);
    s.middle = normed(s.projected, p.out_norm1, p.out_norm1_bias);
    for (size_t i = 0; i < s.middle.size(); ++i) s.middle[i] += s.input[i];
  }

  /// Adds to dnormed2 from the gradient of a dense MLP's output.
  void mlp_backward(const LayerParameters& p, const LayerValues& s, const Matrix& doutput,
                    Matrix& dnormed2) const {
    const auto rows = static_cast<int64_t>(p.tokens.size());
    const int64_t d = m_.hidden;
    Matrix dunnormed(s.output.size()), dinner(s.inner.size());
    normed_backward(s.output, p.out_norm2, p.out_norm2_bias, doutput, dunnormed);
    adapted_backward(s.inner, p.down, p.down_bias, of(p, Projection::down), dunnormed, dinner, rows,
                     p.ffn, d);
    Matrix dup(s.up.size());
    Matrix dgate(s.gate.size());
    for (size_t i = 0; i < dinner.size(); ++i) {
      const Activated f = activate(m_.activation, s.gate[i], s.up[i]);
      dup[i] = dinner[i] * f.by_up;
      dgate[i] = dinner[i] * f.by_gate;
    }
    adapted_backward(s.normed2, p.up, p.up_bias, of(p, Projection::up), dup, dnormed2, rows, d,
                     p.ffn);
    if (p.gate.value)
      adapted_backward(s.normed2, p.gate, {}, of(p, Projection::gate), dgate, dnormed2, rows, d,
                       p.ffn);
  }

  /// From the gradient of the layer's output to that of its input.
  Matrix layer_backward(const LayerParameters& p, const LayerValues& s,
                        const Matrix& doutput) const {
    const auto rows = static_cast<int64_t>(p.tokens.size());
    const int64_t d = m_.hidden;
    const int64_t a = m_.attention_width();
    const int64_t g = m_.kv_width();

    Matrix dmiddle = doutput;  // the residual path; the MLP's share is added below
    Matrix dnormed2(s.normed2.size());
    if (p.has_experts) {
      experts_backward(m_, p.experts, s.normed2, doutput, auxiliary_, dnormed2, rows);
    } else {
      mlp_backward(p, s, doutput, dnormed2);
    }
    normed_backward(s.middle, p.norm2, p.norm2_bias, dnormed2, dmiddle);

    if (!p.attends) return dmiddle;
    Matrix dinput = dmiddle;  // the residual path again
    Matrix dprojected(s.projected.size()), dattended(s.attended.size());
    normed_backward(s.projected, p.out_norm1, p.out_norm1_bias, dmiddle, dprojected);
    adapted_backward(s.attended, p.wo, p.bo, of(p, Projection::out), dprojected, dattended, rows, a,
                     d);
    Matrix dq(s.q.size());
    Matrix dk(s.k.size());
    Matrix dv(s.v.size());
    attention_backward(s.q, s.k, s.v, dattended, dq, dk, dv, heads(p), p.sinks);
    turn(dq, m_.heads, p, -1);
    turn(dk, m_.kv_heads, p, -1);
    if (m_.qk_norm) {
      Matrix dq_raw(dq.size());
      Matrix dk_raw(dk.size());
      normalize_backward(head_norm(m_.heads), s.q_raw, p.q_norm, {}, dq, dq_raw);
      normalize_backward(head_norm(m_.kv_heads), s.k_raw, p.k_norm, {}, dk, dk_raw);
      dq = std::move(dq_raw);
      dk = std::move(dk_raw);
    }
    Matrix dnormed1(s.normed1.size());
    adapted_backward(s.normed1, p.wq, p.bq, of(p, Projection::q), dq, dnormed1, rows, d, a);
    adapted_backward(s.normed1, p.wk, p.bk, of(p, Projection::k), dk, dnormed1, rows, d, g);
    adapted_backward(s.normed1, p.wv, p.bv, of(p, Projection::v), dv, dnormed1, rows, d, g);
    normed_backward(s.input, p.norm1, p.norm1_bias, dnormed1, dinput);
    return dinput;
  }

  const ModelSpec& m_;
  const std::vector<int32_t>& tokens_;
  int64_t rows_;
  Parameter table_, positions_, final_norm_, final_norm_bias_, output_;
  std::vector<LayerParameters> layers_;
  std::vector<LayerValues> values_;
  Matrix last_, normed_, logits_;
  Load load_;
  Matrix auxiliary_;
};

}  // namespace

Result forward_backward(const ModelSpec& model, const std::vector<std::vector<double>>& parameters,
                        const std::vector<int32_t>& tokens) {
  Result result;
  for (const std::vector<double>& unit : parameters) result.gradients.emplace_back(unit.size());
  Model run(model, parameters, tokens, &result.gradients);
  result.loss = run.forward();
  run.backward();
  return result;
}

double forward(const ModelSpec& model, const std::vector<std::vector<double>>& parameters,
               const std::vector<int32_t>& tokens) {
  return Model(model, parameters, tokens, nullptr).forward();
}

}  // namespace longspan::reference
