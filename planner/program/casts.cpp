#include "planner/program/casts.h"

#include <algorithm>

#include "base/units.h"

namespace longspan {
namespace {

constexpr std::string_view kCopies = "copies of operands";

// Adds up the operands of products Y[t, out] = X[t, in] W[out, in]^T, of `count` experts that have
// t rows in all.
class Operands {
 public:
  explicit Operands(ProductFormat format) : format_(format) {}

  void forward(int64_t t, int64_t out, int64_t in, int64_t count = 1) {
    rows(t, in, 1, count);
    weights(out, in, count);
  }
  void input_gradient(int64_t t, int64_t out, int64_t in, int64_t count = 1) {
    rows(t, out, 1, count);
    weights(out, in, count);
  }
  void weight_gradient(int64_t t, int64_t out, int64_t in, int64_t count = 1) {
    rows(t, out, 1, count);
    rows(t, in, 1, count);
  }
  /// Both; dY is read once.
  void gradients(int64_t t, int64_t out, int64_t in, bool trained, int64_t count = 1) {
    rows(t, out, trained ? 2 : 1, count);
    weights(out, in, count);
    if (trained) rows(t, in, 1, count);
  }
  const Casts& sum() const { return sum_; }

 private:
  void rows(int64_t t, int64_t width, int64_t copies, int64_t count) {
    if (t == 0 || width == 0) return;
    // Rows of each expert are padded, of those that have some.
    const int64_t block = format_row(format_).multiple, experts = std::min(count, t);
    const int64_t padded = (t + experts * (block - 1)) / block * block;
    sum_.row_elements = checked_add(sum_.row_elements, checked_mul(t, width, kCopies), kCopies);
    add(sum_.row_bytes, checked_mul(padded, width, kCopies), copies, experts, false);
  }
  void weights(int64_t out, int64_t in, int64_t count) {
    if (out == 0 || in == 0) return;
    const int64_t elements = checked_mul(checked_mul(out, in, kCopies), count, kCopies);
    sum_.weight_elements = checked_add(sum_.weight_elements, elements, kCopies);
    add(sum_.weight_bytes, elements, 1, count, true);
  }
  void add(int64_t& bytes, int64_t elements, int64_t copies, int64_t experts, bool of_weights) {
    // A scale of each expert's tensor.
    const int64_t more = format_row(format_).scales_tensor ? 4 * (experts - 1) : 0;
    const int64_t copy = round_up(copy_bytes(format_, elements, of_weights) + more, kCopyAlignment);
    bytes = checked_add(bytes, copies * copy, kCopies);
  }

  ProductFormat format_;
  Casts sum_;
};

// A rank's widths of a layer, and what its products are.
struct LayerProducts {
  const ModelSpec& m;
  int64_t cut, rows;
  bool output_again;  // the backward computes outputs again, for their norms
  Operands& add;
  int64_t d = m.hidden;
  bool trained = m.backward == LayerBackward::weights;
  int64_t parts = m.gated() ? 2 : 1;  // gate and up, or only up

  void product(bool back, int64_t out, int64_t in) const {
    if (back) {
      add.gradients(rows, out, in, trained);
    } else {
      add.forward(rows, out, in);
    }
  }
  void latent(const GroupHeads& heads, bool kv_too, bool back) const {
    const LatentAttention& l = *m.latent;
    const int64_t of_heads = heads.q / cut, queries = of_heads * m.head_dim;
    const int64_t keys = of_heads * (m.head_dim - l.rotated_dim + l.value_dim);
    const int64_t narrow = l.key_rank + l.rotated_dim;
    // The backward computes the narrow vectors again.
    for (const bool pass : {false, true}) {
      if (pass && !back) break;
      if (l.query_rank > 0) product(pass, l.query_rank, d);
      if (pass == back) product(pass, queries, l.query_rank > 0 ? l.query_rank : d);
      if (!kv_too) continue;
      product(pass, narrow, d);
      if (pass == back) product(pass, keys, l.key_rank);
    }
  }
  // `count` MLPs of inner width f, with t rows in all; `kind` is that of an MLP's op.
  void mlps(OpKind kind, const OpShape& shape, int64_t t, int64_t f, int64_t count) const {
    if (f == 0) return;
    const int64_t w = parts * f;
    if (kind == OpKind::mlp_backward_weight) {
      add.weight_gradient(t, d, f, count);
      add.weight_gradient(t, w, d, count);
      return;
    }
    const bool forward = kind == OpKind::mlp_forward;
    const bool has_inner = forward ? shape.given_inner : shape.saves_inner;
    if (!has_inner) add.forward(t, w, d, count);
    if (forward || (output_again && !m.experts)) add.forward(t, d, f, count);
    if (forward) return;
    const bool weights = trained && kind == OpKind::mlp_backward;
    add.gradients(t, d, f, weights, count);
    add.gradients(t, w, d, weights, count);
  }
  void mlp(const OpShape& shape) const {
    if (!m.experts) return mlps(shape.kind, shape, rows, m.ffn / cut, 1);
    const Experts& e = *m.experts;
    mlps(shape.kind, shape, rows * e.active, e.ffn / cut, e.count);
    mlps(shape.kind, shape, rows, e.shared_ffn / cut, 1);
  }
};

}  // namespace

Casts casts_of(const ModelSpec& m, const Lengths& lengths, int64_t cut, ProductFormat format,
               const OpShape& shape, int64_t rows) {
  if (format == ProductFormat::dtype) return {};
  Operands add(format);
  const bool output_again = m.norms_outputs() && !shape.partial;
  const LayerProducts layer{m, cut, rows, output_again, add};
  const int64_t d = m.hidden, a = m.attended_width() / cut;
  const GroupHeads heads = group_heads(m, lengths);
  const int64_t q = heads.q / cut * m.head_dim;
  const int64_t kv = shape.queries_only ? 0 : 2 * (heads.kv / cut * m.head_dim);
  switch (shape.kind) {
    case OpKind::qkv_forward:
      if (m.latent) {
        layer.latent(heads, kv > 0, false);
      } else {
        add.forward(rows, q + kv, d);
      }
      break;
    case OpKind::qkv_backward:
      if (m.latent) {
        layer.latent(heads, kv > 0, true);
        break;
      }
      if (m.qk_norm) add.forward(rows, q + kv / 2, d);
      add.gradients(rows, q + kv, d, layer.trained);
      break;
    case OpKind::qkv_backward_input:
      if (m.qk_norm) add.forward(rows, q + kv / 2, d);
      add.input_gradient(rows, q + kv, d);
      break;
    case OpKind::qkv_backward_weight:
      add.weight_gradient(rows, q + kv, d);
      break;
    case OpKind::out_forward:
      add.forward(rows, d, a);
      break;
    case OpKind::out_backward:
      if (output_again) add.forward(rows, d, a);
      add.gradients(rows, d, a, layer.trained);
      break;
    case OpKind::out_backward_input:
      add.input_gradient(rows, d, a);
      break;
    case OpKind::out_backward_weight:
      add.weight_gradient(rows, d, a);
      break;
    case OpKind::mlp_forward:
    case OpKind::mlp_backward:
    case OpKind::mlp_backward_input:
    case OpKind::mlp_backward_weight:
      layer.mlp(shape);
      break;
    case OpKind::experts_forward:
    case OpKind::experts_backward:
      layer.mlps(shape.kind == OpKind::experts_forward ? OpKind::mlp_forward : OpKind::mlp_backward,
                 shape, rows, m.experts->ffn / cut, m.experts->count / lengths.expert);
      break;
    case OpKind::shared_forward:
    case OpKind::shared_backward:
      layer.mlps(shape.kind == OpKind::shared_forward ? OpKind::mlp_forward : OpKind::mlp_backward,
                 shape, rows, m.experts->shared_ffn / cut, 1);
      break;
    default:
      break;
  }
  return add.sum();
}

int64_t moved_bytes(ProductFormat format, int64_t elements, int64_t bytes) {
  return 2 * elements * (format_row(format).scales_tensor ? 2 : 1) + bytes;
}

}  // namespace longspan
