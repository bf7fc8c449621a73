#include "base/error.h"
#include "models/model_spec.h"

namespace longspan {

ModelFlops model_flops(const ModelSpec& model, int64_t sequence, bool causal) {
  if (sequence < 1) throw bad_input("sequence: expected a whole number > 0, got {}", sequence);
  const auto s = static_cast<double>(sequence);
  const auto layers = static_cast<double>(model.layers);
  const auto hidden = static_cast<double>(model.hidden);
  const auto attention = static_cast<double>(model.heads) * static_cast<double>(model.head_dim);
  const auto kv = static_cast<double>(model.kv_heads) * static_cast<double>(model.head_dim);
  const double mlp_matrices = model.activation == Activation::swiglu ? 3 : 2;

  // Multiply-adds of one token: q, k, v and out, then the MLP.
  const double projections = hidden * (2 * attention + 2 * kv);
  const double mlp = mlp_matrices * hidden * static_cast<double>(model.ffn);
  const double logits = hidden * static_cast<double>(model.vocab);
  // One of s and s + 1 is even, so halving first keeps whole numbers.
  const double half = sequence % 2 == 0 ? (s / 2) * (s + 1) : s * ((s + 1) / 2);
  const double pairs = causal ? half : s * s;

  ModelFlops flops;
  flops.dense_forward = 2 * s * (layers * (projections + mlp) + logits);
  flops.attention_forward = 4 * pairs * attention * layers;  // scores and values, A MACs each
  return flops;
}

}  // namespace longspan
