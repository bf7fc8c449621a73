#include "tests/reference/ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace longspan::reference {
namespace {

double dot(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void add_scaled(double* out, double factor, const double* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] += factor * x[i];
}

}  // namespace

Matrix linear(const Matrix& x, Parameter w, Parameter b, int64_t rows, int64_t in, int64_t out) {
  Matrix y(rows * out);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      y[t * out + o] = dot(&x[t * in], w.value + o * in, in) + (b.value ? b.value[o] : 0);
    }
  }
  return y;
}

void linear_backward(const Matrix& x, Parameter w, Parameter b, const Matrix& dy, Matrix& dx,
                     int64_t rows, int64_t in, int64_t out) {
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      const double g = dy[t * out + o];
      add_scaled(&dx[t * in], g, w.value + o * in, in);
      add_scaled(w.gradient + o * in, g, &x[t * in], in);
      if (b.gradient) b.gradient[o] += g;
    }
  }
}

namespace {

struct RowStatistics {
  double mean = 0;  // zero for rmsnorm
  double inverse = 0;
};

RowStatistics row_statistics(Norm norm, const double* x, int64_t width, double eps) {
  const auto count = static_cast<double>(width);
  RowStatistics s;
  if (norm == Norm::layernorm) {
    for (int64_t i = 0; i < width; ++i) s.mean += x[i] / count;
  }
  double variance = 0;
  for (int64_t i = 0; i < width; ++i) variance += (x[i] - s.mean) * (x[i] - s.mean) / count;
  s.inverse = 1 / std::sqrt(variance + eps);
  return s;
}

}  // namespace

Matrix normalize(const NormShape& shape, const Matrix& x, Parameter w, Parameter b) {
  const auto [norm, width, eps, offset] = shape;
  Matrix y(x.size());
  for (size_t row = 0; row < x.size(); row += width) {
    const RowStatistics s = row_statistics(norm, &x[row], width, eps);
    for (int64_t i = 0; i < width; ++i) {
      y[row + i] = (x[row + i] - s.mean) * s.inverse * (offset + w.value[i]);
      if (b.value) y[row + i] += b.value[i];
    }
  }
  return y;
}

void normalize_backward(const NormShape& shape, const Matrix& x, Parameter w, Parameter b,
                        const Matrix& dy, Matrix& dx) {
  const auto [norm, width, eps, offset] = shape;
  const auto count = static_cast<double>(width);
  for (size_t row = 0; row < x.size(); row += width) {
    const RowStatistics s = row_statistics(norm, &x[row], width, eps);
    // With n = (x - mean) * inverse and g = dL/dn = dy * (offset + w):
    //   dx = inverse * (g - mean(g) - n * mean(g * n)), the mean(g) term only where x is centred.
    double mean_g = 0;
    double mean_gn = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double n = (x[row + i] - s.mean) * s.inverse;
      const double g = dy[row + i] * (offset + w.value[i]);
      mean_g += g / count;
      mean_gn += g * n / count;
      w.gradient[i] += dy[row + i] * n;
      if (b.gradient) b.gradient[i] += dy[row + i];
    }
    if (norm == Norm::rmsnorm) mean_g = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double n = (x[row + i] - s.mean) * s.inverse;
      const double g = dy[row + i] * (offset + w.value[i]);
      dx[row + i] += s.inverse * (g - mean_g - n * mean_gn);
    }
  }
}

std::vector<double> rope_frequencies(int64_t head_dim, double theta,
                                     const std::optional<RopeScaling>& scaling) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling && scaling->type == RopeType::linear) {
      frequency /= scaling->factor;
    } else if (scaling && scaling->type == RopeType::yarn) {
      const auto dim = static_cast<double>(head_dim);
      const auto original = static_cast<double>(scaling->original_max_positions);
      const auto pair = [&](double turns) {
        return dim * std::log(original / (2 * std::numbers::pi * turns)) / (2 * std::log(theta));
      };
      double first = pair(scaling->beta_fast), last = pair(scaling->beta_slow);
      if (scaling->truncates) first = std::floor(first), last = std::ceil(last);
      const double low = std::max(0.0, first), high = std::min(dim - 1, last);
      const double kept = 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      frequency = kept * frequency + (1 - kept) * frequency / scaling->factor;
    } else if (scaling) {
      const auto original = static_cast<double>(scaling->original_max_positions);
      const double turns = original * frequency / (2 * std::numbers::pi);  // original / wavelength
      const double kept = std::clamp((turns - scaling->low_freq_factor) /
                                         (scaling->high_freq_factor - scaling->low_freq_factor),
                                     0.0, 1.0);
      frequency = kept * frequency + (1 - kept) * frequency / scaling->factor;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

double magnitude(const std::optional<RopeScaling>& scaling) {
  return scaling && scaling->type == RopeType::yarn ? scaling->attention_factor : 1;
}

void rotate(Matrix& x, int64_t heads, int64_t head_dim, const std::vector<double>& frequencies,
            int direction, double magnitude, const std::vector<int64_t>* positions) {
  const auto half = static_cast<int64_t>(frequencies.size());
  const int64_t width = heads * head_dim;
  const int64_t rows = static_cast<int64_t>(x.size()) / width;
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t position = positions == nullptr ? t : (*positions)[t];
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[i];
      const double c = magnitude * std::cos(angle);
      const double s = magnitude * direction * std::sin(angle);
      for (int64_t h = 0; h < heads; ++h) {
        double& a = x[t * width + h * head_dim + i];
        double& b = x[t * width + h * head_dim + i + half];
        const double a_turned = a * c - b * s;
        b = b * c + a * s;
        a = a_turned;
      }
    }
  }
}

namespace {

/// Softmax over keys 0 .. i of query row i, head h, of which a window may hide the first; and last
/// the sink's, or zero.
std::vector<double> probabilities(const Matrix& q, const Matrix& k, const Heads& n, int64_t h,
                                  int64_t i, Parameter sinks) {
  const int64_t g = h / (n.heads / n.kv_heads);
  const double* query = &q[(i * n.heads + h) * n.head_dim];
  std::vector<double> p(i + 2, -INFINITY);
  for (int64_t j = 0; j <= i; ++j) {
    if (n.window > 0 && i - j >= n.window) continue;
    if (n.span > 0 && i / n.span != j / n.span) continue;
    p[j] = n.scale * dot(query, &k[(j * n.kv_heads + g) * n.head_dim], n.head_dim);
  }
  if (sinks.value != nullptr) p[i + 1] = sinks.value[h];
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - largest);
  for (double& value : p) value /= sum;
  return p;
}

}  // namespace

Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v, const Heads& n,
                 Parameter sinks) {
  Matrix out(q.size());
  for (int64_t h = 0; h < n.heads; ++h) {
    const int64_t g = h / (n.heads / n.kv_heads);
    for (int64_t i = 0; i < n.rows; ++i) {
      const std::vector<double> p = probabilities(q, k, n, h, i, sinks);
      double* o = &out[(i * n.heads + h) * n.head_dim];
      for (int64_t j = 0; j <= i; ++j) {
        add_scaled(o, p[j], &v[(j * n.kv_heads + g) * n.head_dim], n.head_dim);
      }
    }
  }
  return out;
}

void attention_backward(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& dout,
                        Matrix& dq, Matrix& dk, Matrix& dv, const Heads& n, Parameter sinks) {
  for (int64_t h = 0; h < n.heads; ++h) {
    const int64_t g = h / (n.heads / n.kv_heads);
    for (int64_t i = 0; i < n.rows; ++i) {
      const int64_t query = (i * n.heads + h) * n.head_dim;
      const std::vector<double> p = probabilities(q, k, n, h, i, sinks);
      std::vector<double> dp(i + 1);
      double weighted = 0;  // sum_j p_j dp_j
      for (int64_t j = 0; j <= i; ++j) {
        dp[j] = dot(&dout[query], &v[(j * n.kv_heads + g) * n.head_dim], n.head_dim);
        weighted += p[j] * dp[j];
      }
      for (int64_t j = 0; j <= i; ++j) {
        const int64_t key = (j * n.kv_heads + g) * n.head_dim;
        const double dscore = n.scale * p[j] * (dp[j] - weighted);
        add_scaled(&dv[key], p[j], &dout[query], n.head_dim);
        add_scaled(&dq[query], dscore, &k[key], n.head_dim);
        add_scaled(&dk[key], dscore, &q[query], n.head_dim);
      }
      if (sinks.gradient != nullptr) sinks.gradient[h] -= p[i + 1] * weighted;
    }
  }
}

namespace {
const double gelu_scale = std::sqrt(2 / std::numbers::pi);
constexpr double gelu_cubic = 0.044715;
}  // namespace

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(gelu_scale * (x + gelu_cubic * x * x * x)));
}

double gelu_derivative(double x) {
  const double t = std::tanh(gelu_scale * (x + gelu_cubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_scale * (1 + 3 * gelu_cubic * x * x);
}

double silu(double x) { return x / (1 + std::exp(-x)); }

double silu_derivative(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

Activated activate(Activation activation, double gate, double up) {
  switch (activation) {
    case Activation::gelu:
      return {gelu(up), 0, gelu_derivative(up)};
    case Activation::geglu:
      return {gelu(gate) * up, gelu_derivative(gate) * up, gelu(gate)};
    case Activation::clamped_swiglu: {
      constexpr double limit = 7, steepness = 1.702;
      const double x = std::min(gate, limit), y = std::clamp(up, -limit, limit) + 1;
      const double s = 1 / (1 + std::exp(-steepness * x));
      const double slope = s + steepness * x * s * (1 - s);
      return {x * s * y, gate > limit ? 0 : slope * y, std::abs(up) > limit ? 0 : x * s};
    }
    default:
      return {silu(gate) * up, silu_derivative(gate) * up, silu(gate)};
  }
}

double cross_entropy(const Matrix& logits, const int32_t* labels, int64_t rows, int64_t vocab,
                     Matrix* dlogits) {
  if (dlogits) dlogits->resize(logits.size());
  double loss = 0;
  for (int64_t t = 0; t < rows; ++t) {
    const double* row = &logits[t * vocab];
    const double largest = *std::max_element(row, row + vocab);
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - largest);
    loss += std::log(sum) + largest - row[labels[t]];
    if (!dlogits) continue;
    for (int64_t i = 0; i < vocab; ++i) {
      const double p = std::exp(row[i] - largest) / sum;
      (*dlogits)[t * vocab + i] = (p - (i == labels[t] ? 1 : 0)) / static_cast<double>(rows);
    }
  }
  return loss / static_cast<double>(rows);
}

}  // namespace longspan::reference
