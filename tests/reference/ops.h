// The operators of the reference, each with its backward. Matrices are row-major vectors of double
// with one row per token. Every backward ADDS to its output gradients, so a value that is used
// twice collects both. A null bias (or null gradient of one) means that the model has none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/model_spec.h"

namespace longspan::reference {

using Matrix = std::vector<double>;

/// A parameter and the accumulator of its gradient; both null if the model does not have it.
struct Parameter {
  const double* value = nullptr;
  double* gradient = nullptr;
};

/// y[t, o] = sum_i x[t, i] w[o, i] + b[o], for x of [rows, in] and w of [out, in].
Matrix linear(const Matrix& x, Parameter w, Parameter b, int64_t rows, int64_t in, int64_t out);
void linear_backward(const Matrix& x, Parameter w, Parameter b, const Matrix& dy, Matrix& dx,
                     int64_t rows, int64_t in, int64_t out);

/// A norm over each row of `width`. layernorm: (x - mean) / sqrt(variance + eps) * (offset + w) +
/// b. rmsnorm: x / sqrt(mean(x^2) + eps) * (offset + w).
struct NormShape {
  Norm norm;
  int64_t width;
  double eps, offset = 0;
};
Matrix normalize(const NormShape& shape, const Matrix& x, Parameter w, Parameter b);
void normalize_backward(const NormShape& shape, const Matrix& x, Parameter w, Parameter b,
                        const Matrix& dy, Matrix& dx);

/// Returns the rotation of pair i of the D first dimensions of a head, which are rotated, per
/// position: theta^(-2i/D). Linear scaling
/// divides all of them by `factor`. By Llama 3.1's published rule, those of wavelengths longer than
/// original/low are divided, those of wavelengths shorter than original/high kept, others
/// interpolated. YaRN (arXiv:2309.00071, in Transformers' form) interpolates over the pairs between
/// those of beta_fast and beta_slow turns; see magnitude() too.
std::vector<double> rope_frequencies(int64_t head_dim, double theta,
                                     const std::optional<RopeScaling>& scaling);

/// The factor on rotated heads: YaRN's attention factor, else 1.
double magnitude(const std::optional<RopeScaling>& scaling);

/// Rotates the pairs (i, i + R/2) of every head of x [rows, heads * D] by position * frequency[i],
/// for R/2 frequencies, and multiplies them by `magnitude`. `direction` is +1 forward and -1 for
/// gradients (the transposed). A row's position is its number, unless `positions` has it.
void rotate(Matrix& x, int64_t heads, int64_t head_dim, const std::vector<double>& frequencies,
            int direction, double magnitude = 1, const std::vector<int64_t>* positions = nullptr);

struct Heads {
  int64_t rows, heads, kv_heads, head_dim;
  double scale;
  int64_t window = 0;  // keys that a query sees, with its own; 0: all before it
  int64_t span = 0;    // they are in aligned parts of this many rows, and it sees those of its own
};
/// Causal softmax attention; q [rows, H*D], k and v [rows, Hkv*D]; head h reads key/value head
/// h / (H / Hkv). `sinks` [H] are further scores of every row's softmax, without a value.
Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v, const Heads& shape,
                 Parameter sinks = {});
void attention_backward(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& dout,
                        Matrix& dq, Matrix& dk, Matrix& dv, const Heads& shape,
                        Parameter sinks = {});

/// gelu in the tanh form: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
double gelu(double x);
double gelu_derivative(double x);
/// x * sigmoid(x).
double silu(double x);
double silu_derivative(double x);

/// The output of an MLP's activation from its gate (ignored by gelu) and up, and its derivatives by
/// them.
struct Activated {
  double value = 0, by_gate = 0, by_up = 0;
};
Activated activate(Activation activation, double gate, double up);

/// Mean over rows of -log softmax(logits)[label]. If `dlogits` is given it is set to the gradient.
double cross_entropy(const Matrix& logits, const int32_t* labels, int64_t rows, int64_t vocab,
                     Matrix* dlogits);

}  // namespace longspan::reference
