#include "tests/reference/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace longspan::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// y[out] = W x (+ b); W is [out, in].
Matrix times(const double* w, const double* b, const double* x, int64_t in, int64_t out) {
  Matrix y(out);
  for (int64_t o = 0; o < out; ++o) {
    y[o] = std::inner_product(x, x + in, w + o * in, b != nullptr ? b[o] : 0.0);
  }
  return y;
}
// From dy: dx += W^T dy, dW += dy x^T, db += dy.
void times_backward(const double* w, double* dw, double* db, const double* x, const Matrix& dy,
                    int64_t in, double* dx) {
  for (size_t o = 0; o < dy.size(); ++o) {
    for (int64_t i = 0; i < in; ++i) {
      dx[i] += w[o * in + i] * dy[o];
      dw[o * in + i] += x[i] * dy[o];
    }
    if (db != nullptr) db[o] += dy[o];
  }
}

// What the router gives a token.
struct Choice {
  Matrix scores;
  std::vector<int64_t> chosen;
  Matrix weights;
  double sum = 0;  // of the chosen scores
};

std::vector<int64_t> highest(const Matrix& scores, int64_t count) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  order.resize(count);
  return order;
}

bool normalises(const Experts& e) {
  return e.normalised || e.scores == Experts::Scores::softmax_of_chosen;
}

Choice choose(const ModelSpec& m, const ExpertsParameters& p, const double* x) {
  const Experts& e = *m.experts;
  Choice c;
  c.scores = times(p.router.value, p.router_bias.value, x, m.hidden, e.count);
  if (e.scores == Experts::Scores::sigmoid) {
    for (double& s : c.scores) s = sigmoid(s);
    Matrix by = c.scores;
    for (int64_t i = 0; p.selection_bias.value && i < e.count; ++i)
      by[i] += p.selection_bias.value[i];
    const int64_t size = e.count / e.groups;
    Matrix sums;
    for (int64_t g = 0; e.groups > 1 && g < e.groups; ++g) {
      Matrix group(by.begin() + g * size, by.begin() + (g + 1) * size);
      std::sort(group.rbegin(), group.rend());
      sums.push_back(group[0] + group[1]);
    }
    if (e.groups > 1) {
      const std::vector<int64_t> kept = highest(sums, e.active_groups);
      for (int64_t i = 0; i < e.count; ++i) {
        if (std::find(kept.begin(), kept.end(), i / size) == kept.end()) by[i] = -INFINITY;
      }
    }
    c.chosen = highest(by, e.active);
  } else {
    c.chosen = highest(c.scores, e.active);
    const double top = *std::max_element(c.scores.begin(), c.scores.end());
    for (double& s : c.scores) s = std::exp(s - top);
    const double all = std::accumulate(c.scores.begin(), c.scores.end(), 0.0);
    for (double& s : c.scores) s /= all;
  }
  for (const int64_t i : c.chosen) c.sum += c.scores[i];
  for (const int64_t i : c.chosen) {
    c.weights.push_back(e.scale * c.scores[i] / (normalises(e) ? c.sum : 1));
  }
  return c;
}

// One expert, or the shared ones, as an MLP of one token.
struct Mlp {
  Parameter gate, up, down;  // of this expert
  Parameter up_bias, gate_bias, down_bias;
  int64_t ffn = 0;
};
Parameter at(Parameter all, int64_t offset) {
  if (all.value == nullptr) return {};
  return {all.value + offset, all.gradient ? all.gradient + offset : nullptr};
}
Mlp expert(const ModelSpec& m, const ExpertsParameters& p, int64_t i) {
  const int64_t f = m.experts->ffn, d = m.hidden;
  const int64_t w = m.gated() ? 2 * f : f, gates = m.gated() ? f : 0;
  Mlp mlp;
  mlp.ffn = f;
  if (m.gated()) mlp.gate = at(p.up, i * w * d);
  if (m.gated()) mlp.gate_bias = at(p.up_bias, i * w);
  mlp.up = at(p.up, (i * w + gates) * d);
  mlp.up_bias = at(p.up_bias, i * w + gates);
  mlp.down = at(p.down, i * d * f);
  mlp.down_bias = at(p.down_bias, i * d);
  return mlp;
}
Mlp shared(const ModelSpec& m, const ExpertsParameters& p) {
  Mlp mlp;
  mlp.ffn = m.experts->shared_ffn;
  mlp.gate = p.shared_gate;
  mlp.up = p.shared_up;
  mlp.down = p.shared_down;
  return mlp;
}

struct MlpValues {
  Matrix gate, up, inner, output;
};
MlpValues forward(const ModelSpec& m, const Mlp& p, const double* x) {
  MlpValues v;
  v.up = times(p.up.value, p.up_bias.value, x, m.hidden, p.ffn);
  v.gate.resize(p.ffn);
  if (m.gated()) v.gate = times(p.gate.value, p.gate_bias.value, x, m.hidden, p.ffn);
  for (int64_t i = 0; i < p.ffn; ++i) {
    v.inner.push_back(activate(m.activation, v.gate[i], v.up[i]).value);
  }
  v.output = times(p.down.value, p.down_bias.value, v.inner.data(), p.ffn, m.hidden);
  return v;
}
void backward(const ModelSpec& m, const Mlp& p, const MlpValues& v, const double* x,
              const Matrix& dy, double* dx) {
  Matrix d_inner(p.ffn), d_gate(p.ffn), d_up(p.ffn);
  times_backward(p.down.value, p.down.gradient, p.down_bias.gradient, v.inner.data(), dy, p.ffn,
                 d_inner.data());
  for (int64_t i = 0; i < p.ffn; ++i) {
    const Activated a = activate(m.activation, v.gate[i], v.up[i]);
    d_gate[i] = d_inner[i] * a.by_gate;
    d_up[i] = d_inner[i] * a.by_up;
  }
  times_backward(p.up.value, p.up.gradient, p.up_bias.gradient, x, d_up, m.hidden, dx);
  if (!m.gated()) return;
  times_backward(p.gate.value, p.gate.gradient, p.gate_bias.gradient, x, d_gate, m.hidden, dx);
}

Matrix scaled(const double* x, int64_t n, double by) {
  Matrix y(x, x + n);
  for (double& value : y) value *= by;
  return y;
}

double gate_of(const ModelSpec& m, const ExpertsParameters& p, const double* x) {
  return p.gate.value ? sigmoid(times(p.gate.value, nullptr, x, m.hidden, 1)[0]) : 1;
}

}  // namespace

double auxiliary_loss(const Experts& e, const Load& load) {
  double sum = 0;
  for (size_t i = 0; i < load.chosen.size(); ++i) {
    sum += load.chosen[i] / load.tokens * (load.probabilities[i] / load.tokens);
  }
  return e.auxiliary_loss * static_cast<double>(e.count) * sum;
}

Matrix auxiliary_gradients(const Experts& e, const Load& load) {
  Matrix gradients;
  for (const double chosen : load.chosen) {
    const double mean = chosen / load.tokens;
    gradients.push_back(e.auxiliary_loss * static_cast<double>(e.count) * mean / load.tokens);
  }
  return gradients;
}

Matrix experts(const ModelSpec& m, const ExpertsParameters& p, const Matrix& x, int64_t rows,
               Load& load) {
  const int64_t d = m.hidden;
  Matrix y(rows * d);
  load.chosen.resize(m.experts->count);
  load.probabilities.resize(m.experts->count);
  load.tokens += static_cast<double>(rows);
  for (int64_t t = 0; t < rows; ++t) {
    const double* from = x.data() + t * d;
    const auto add = [&](const Matrix& output, double weight) {
      for (int64_t i = 0; i < d; ++i) y[t * d + i] += weight * output[i];
    };
    const Choice c = choose(m, p, from);
    for (const int64_t i : c.chosen) load.chosen[i] += 1;
    for (size_t i = 0; i < c.scores.size(); ++i) load.probabilities[i] += c.scores[i];
    for (size_t j = 0; j < c.chosen.size(); ++j) {
      add(forward(m, expert(m, p, c.chosen[j]), from).output, c.weights[j]);
    }
    if (m.experts->shared_ffn > 0) add(forward(m, shared(m, p), from).output, gate_of(m, p, from));
  }
  return y;
}

void experts_backward(const ModelSpec& m, const ExpertsParameters& p, const Matrix& x,
                      const Matrix& dy, const Matrix& auxiliary, Matrix& dx, int64_t rows) {
  const Experts& e = *m.experts;
  const int64_t d = m.hidden;
  for (int64_t t = 0; t < rows; ++t) {
    const double *from = x.data() + t * d, *g = dy.data() + t * d;
    double* to = dx.data() + t * d;
    const Choice c = choose(m, p, from);
    Matrix d_score = auxiliary;
    d_score.resize(e.count);
    Matrix d_weight;
    double mean = 0;  // of d_weight, by share
    for (size_t j = 0; j < c.chosen.size(); ++j) {
      const Mlp mlp = expert(m, p, c.chosen[j]);
      const MlpValues v = forward(m, mlp, from);
      d_weight.push_back(std::inner_product(g, g + d, v.output.begin(), 0.0));
      mean += d_weight[j] * c.scores[c.chosen[j]] / c.sum;
      backward(m, mlp, v, from, scaled(g, d, c.weights[j]), to);
    }
    for (size_t j = 0; j < c.chosen.size(); ++j) {
      d_score[c.chosen[j]] +=
          normalises(e) ? e.scale / c.sum * (d_weight[j] - mean) : e.scale * d_weight[j];
    }
    Matrix d_logit(e.count);
    const double dot = std::inner_product(d_score.begin(), d_score.end(), c.scores.begin(), 0.0);
    for (int64_t i = 0; i < e.count; ++i) {
      const double s = c.scores[i];
      d_logit[i] =
          e.scores == Experts::Scores::sigmoid ? d_score[i] * s * (1 - s) : s * (d_score[i] - dot);
    }
    times_backward(p.router.value, p.router.gradient, p.router_bias.gradient, from, d_logit, d, to);
    if (e.shared_ffn == 0) continue;
    const Mlp mlp = shared(m, p);
    const MlpValues v = forward(m, mlp, from);
    const double gate = gate_of(m, p, from);
    backward(m, mlp, v, from, scaled(g, d, gate), to);
    if (p.gate.value == nullptr) continue;
    const double d_gate = std::inner_product(g, g + d, v.output.begin(), 0.0);
    times_backward(p.gate.value, p.gate.gradient, nullptr, from, {d_gate * gate * (1 - gate)}, d,
                   to);
  }
}

}  // namespace longspan::reference
