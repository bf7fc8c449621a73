#include "tests/engine/cpu/reference.h"

#include <algorithm>
#include <cmath>

#include "engine/runtime/labels.h"

namespace longspan::reference {
namespace {

// y[n,out] = x[n,in] w[out,in]^T (+ b).
Doubles linear(const Doubles& x, int64_t in, const double* w, const double* b, int64_t outs) {
  const int64_t n = static_cast<int64_t>(x.size()) / in;
  Doubles y(n * outs);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < outs; ++j) {
      double sum = b == nullptr ? 0 : b[j];
      for (int64_t p = 0; p < in; ++p) sum += x[i * in + p] * w[j * in + p];
      y[i * outs + j] = sum;
    }
  }
  return y;
}

const double* tensor(const Layer& layer, int64_t offset) {
  return offset < 0 ? nullptr : layer.unit.data() + offset;
}

double rope_frequency(const ModelSpec& model, int64_t i) {
  const double f = 1 / std::pow(model.rope_theta,
                                2.0 * static_cast<double>(i) / static_cast<double>(model.head_dim));
  if (!model.rope_scaling) return f;
  const RopeScaling& s = *model.rope_scaling;
  if (s.type == RopeType::linear) return f / s.factor;
  if (s.type == RopeType::yarn) {
    const auto pair_at = [&](double turns) {
      const double wave = static_cast<double>(s.original_max_positions) / turns;
      return std::log(wave / (2 * std::acos(-1.0))) / std::log(model.rope_theta) *
             static_cast<double>(model.head_dim) / 2;
    };
    const double first = std::max(0.0, std::floor(pair_at(s.beta_fast)));
    const double last =
        std::min(std::ceil(pair_at(s.beta_slow)), static_cast<double>(model.head_dim) - 1);
    const double part = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    return f * (1 - part + part / s.factor);
  }
  const double original = static_cast<double>(s.original_max_positions);
  const double wave = 2 * std::acos(-1.0) / f;
  if (wave < original / s.high_freq_factor) return f;
  if (wave > original / s.low_freq_factor) return f / s.factor;
  const double smooth =
      (original / wave - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - smooth) * f / s.factor + smooth * f;
}

double offset_of(const ModelSpec& model) { return model.norm_offset ? 1 : 0; }

// RMSNorm of `width` elements of a head, or of all heads.
void head_norm(const ModelSpec& model, const double* weight, int64_t width, double* head) {
  double square = 0;
  for (int64_t j = 0; j < width; ++j) square += head[j] * head[j];
  const double r = 1 / std::sqrt(square / static_cast<double>(width) + model.norm_eps);
  for (int64_t j = 0; j < width; ++j) head[j] *= r * (offset_of(model) + weight[j]);
}

void rotate(const ModelSpec& model, int64_t position, double* head) {
  const int64_t half = model.head_dim / 2;
  const Doubles x(head, head + model.head_dim);
  const bool yarn = model.rope_scaling && model.rope_scaling->type == RopeType::yarn;
  const double m = yarn ? model.rope_scaling->attention_factor : 1;
  for (int64_t j = 0; j < half; ++j) {
    const double angle = static_cast<double>(position) * rope_frequency(model, j);
    head[j] = m * (x[j] * std::cos(angle) - x[j + half] * std::sin(angle));
    head[j + half] = m * (x[j + half] * std::cos(angle) + x[j] * std::sin(angle));
  }
}

// The scaled score of a query and a key, both [D].
double score(const ModelSpec& model, const double* q, const double* k) {
  double sum = 0;
  for (int64_t j = 0; j < model.head_dim; ++j) sum += q[j] * k[j];
  return sum * model.score_scale();
}

}  // namespace

Doubles norm(const ModelSpec& model, const double* weight, const double* bias, const Doubles& x) {
  const int64_t d = model.hidden;
  Doubles h(x.size());
  for (size_t row = 0; row < x.size(); row += d) {
    double mean = 0;
    for (int64_t j = 0; j < d && model.norm == Norm::layernorm; ++j) {
      mean += x[row + j] / static_cast<double>(d);
    }
    double square = 0;
    for (int64_t j = 0; j < d; ++j) square += (x[row + j] - mean) * (x[row + j] - mean);
    const double r = 1 / std::sqrt(square / static_cast<double>(d) + model.norm_eps);
    for (int64_t j = 0; j < d; ++j) {
      h[row + j] = (x[row + j] - mean) * r * (offset_of(model) + weight[j]);
      if (bias != nullptr) h[row + j] += bias[j];
    }
  }
  return h;
}

namespace {

// The norm at these offsets, if there is one.
Doubles norm_at(const Layer& layer, int64_t weight, int64_t bias, const Doubles& x) {
  return weight < 0 ? x : norm(layer.model, tensor(layer, weight), tensor(layer, bias), x);
}

}  // namespace

Doubles norm1(const Layer& layer, const Doubles& x) {
  return norm_at(layer, layer.at.norm1_weight, layer.at.norm1_bias, x);
}

Qkv qkv(const Layer& layer, const Doubles& x, bool normed, int64_t position0) {
  const ModelSpec& model = layer.model;
  const int64_t a = model.attention_width();
  const int64_t g = model.kv_width();
  const int64_t all = a + 2 * g;
  const Doubles h = normed ? x : norm1(layer, x);
  const Doubles joint = linear(h, model.hidden, tensor(layer, layer.at.qkv_weight),
                               tensor(layer, layer.at.qkv_bias), all);
  Qkv result;
  for (size_t row = 0; row * all < joint.size(); ++row) {
    const double* from = joint.data() + row * all;
    Doubles q(from, from + a);
    Doubles k(from + a, from + a + g);
    const int64_t position = position0 + static_cast<int64_t>(row);
    const auto finish = [&](Doubles& heads, int64_t norm_offset) {
      const int64_t width =
          model.qk_norm_of_token ? static_cast<int64_t>(heads.size()) : model.head_dim;
      for (size_t j = 0; j < heads.size() && model.qk_norm; j += width) {
        head_norm(model, tensor(layer, norm_offset), width, &heads[j]);
      }
      for (size_t j = 0; j < heads.size(); j += model.head_dim) {
        if (model.positions == Positions::rope) rotate(model, position, &heads[j]);
      }
    };
    finish(q, layer.at.q_norm);
    finish(k, layer.at.k_norm);
    result.q.insert(result.q.end(), q.begin(), q.end());
    result.k.insert(result.k.end(), k.begin(), k.end());
    result.v.insert(result.v.end(), from + a + g, from + all);
  }
  return result;
}

Attention attention(const ModelSpec& model, const Doubles& q, const Doubles& k, const Doubles& v,
                    int64_t q0, const Doubles& sinks) {
  const int64_t a = model.attention_width();
  const int64_t g = model.kv_width();
  const int64_t dim = model.head_dim;
  const int64_t nq = static_cast<int64_t>(q.size()) / a;
  const int64_t nk = static_cast<int64_t>(k.size()) / g;
  Attention result{Doubles(nq * a), Doubles(nq * model.heads)};
  for (int64_t i = 0; i < nq; ++i) {
    for (int64_t h = 0; h < model.heads; ++h) {
      const int64_t kv = h / (model.heads / model.kv_heads) * dim;
      const int64_t visible = std::min(nk, q0 + i + 1);
      Doubles s(visible);
      for (int64_t j = 0; j < visible; ++j) {
        const bool hidden = model.window > 0 && q0 + i - j >= model.window;
        s[j] = hidden ? -INFINITY : score(model, &q[i * a + h * dim], &k[j * g + kv]);
      }
      if (!sinks.empty()) s.push_back(sinks[h]);
      const double top = *std::max_element(s.begin(), s.end());
      double sum = 0;
      for (double& value : s) sum += value = std::exp(value - top);
      for (int64_t j = 0; j < visible; ++j) {
        for (int64_t c = 0; c < dim; ++c) {
          result.o[i * a + h * dim + c] += s[j] / sum * v[j * g + kv + c];
        }
      }
      result.lse[i * model.heads + h] = top + std::log(sum);
    }
  }
  return result;
}

AttentionGradient attention_backward(const ModelSpec& model, const Doubles& q, const Doubles& k,
                                     const Doubles& v, const Doubles& d_o, const Doubles& lse,
                                     const Doubles& delta, int64_t q0, int64_t k0) {
  const int64_t a = model.attention_width();
  const int64_t g = model.kv_width();
  const int64_t dim = model.head_dim;
  const int64_t nq = static_cast<int64_t>(q.size()) / a;
  const int64_t nk = static_cast<int64_t>(k.size()) / g;
  const double scale = model.score_scale();
  AttentionGradient grad{Doubles(q.size()), Doubles(k.size()), Doubles(v.size())};
  for (int64_t i = 0; i < nq; ++i) {
    for (int64_t h = 0; h < model.heads; ++h) {
      const int64_t at_q = i * a + h * dim;
      for (int64_t j = 0; j < nk && k0 + j <= q0 + i; ++j) {
        if (model.window > 0 && q0 + i - k0 - j >= model.window) continue;
        const int64_t at_k = j * g + h / (model.heads / model.kv_heads) * dim;
        const double p = std::exp(score(model, &q[at_q], &k[at_k]) - lse[i * model.heads + h]);
        double dp = 0;
        for (int64_t c = 0; c < dim; ++c) dp += d_o[at_q + c] * v[at_k + c];
        const double ds = p * (dp - delta[i * model.heads + h]) * scale;
        for (int64_t c = 0; c < dim; ++c) {
          grad.dv[at_k + c] += p * d_o[at_q + c];
          grad.dq[at_q + c] += ds * k[at_k + c];
          grad.dk[at_k + c] += ds * q[at_q + c];
        }
      }
    }
  }
  return grad;
}

Doubles row_dots(const ModelSpec& model, const Doubles& d_o, const Doubles& o) {
  Doubles delta(o.size() / model.head_dim);
  for (size_t i = 0; i < o.size(); ++i) delta[i / model.head_dim] += d_o[i] * o[i];
  return delta;
}

Doubles out(const Layer& layer, const Doubles& x, const Doubles& o) {
  Doubles y = linear(o, layer.model.attention_width(), tensor(layer, layer.at.out_weight),
                     tensor(layer, layer.at.out_bias), layer.model.hidden);
  y = norm_at(layer, layer.at.out_norm1_weight, layer.at.out_norm1_bias, y);
  for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  return y;
}

double activation(Activation kind, double gate, double up) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto gelu = [](double x) {
    const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1 + std::tanh(u));
  };
  switch (kind) {
    case Activation::gelu:
      return gelu(gate);
    case Activation::swiglu:
      return gate * sigmoid(gate) * up;
    case Activation::geglu:
      return gelu(gate) * up;
    default: {
      const double x = std::min(gate, 7.0);
      return x * sigmoid(1.702 * x) * (std::clamp(up, -7.0, 7.0) + 1);
    }
  }
}

Doubles mlp(const Layer& layer, const Doubles& y, Doubles* inner) {
  const ModelSpec& model = layer.model;
  const int64_t f = model.ffn;
  const int64_t w = model.inner_width();
  const Doubles h = norm_at(layer, layer.at.norm2_weight, layer.at.norm2_bias, y);
  const Doubles z = linear(h, model.hidden, tensor(layer, layer.at.up_weight),
                           tensor(layer, layer.at.up_bias), w);
  Doubles act;
  for (size_t row = 0; row < z.size(); row += w) {
    for (int64_t j = 0; j < f; ++j) {
      act.push_back(activation(model.activation, z[row + j], z[row + w - f + j]));
    }
  }
  Doubles result = linear(act, f, tensor(layer, layer.at.down_weight),
                          tensor(layer, layer.at.down_bias), model.hidden);
  result = norm_at(layer, layer.at.out_norm2_weight, layer.at.out_norm2_bias, result);
  for (size_t i = 0; i < result.size(); ++i) result[i] += y[i];
  if (inner != nullptr) *inner = z;
  return result;
}

double loss(const ModelSpec& model, const Doubles& head, const Doubles& output, const Doubles& x,
            const std::vector<int32_t>& labels, double scale) {
  const double* bias = model.norm == Norm::layernorm ? head.data() + model.hidden : nullptr;
  const Doubles h = norm(model, head.data(), bias, x);
  const Doubles logits = linear(h, model.hidden, output.data(), nullptr, model.vocab);
  double sum = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == kNoLabel) continue;
    const double* row = logits.data() + i * model.vocab;
    const double top = *std::max_element(row, row + model.vocab);
    double total = 0;
    for (int64_t j = 0; j < model.vocab; ++j) total += std::exp(row[j] - top);
    sum += scale * (top + std::log(total) - row[labels[i]]);
  }
  return sum;
}

Doubles differences(const std::function<double()>& f, Doubles& x) {
  constexpr double kStep = 1e-5;
  Doubles gradient;
  for (double& value : x) {
    const double kept = value;
    value = kept + kStep;
    const double above = f();
    value = kept - kStep;
    const double below = f();
    value = kept;
    gradient.push_back((above - below) / (2 * kStep));
  }
  return gradient;
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace longspan::reference
