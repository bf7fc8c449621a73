#include "engine/runtime/layer_offsets.h"

#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

// Walks the tensors of a layer unit in the order parameter_units documents.
class Cursor {
 public:
  int64_t take(int64_t elements, bool present = true) {
    if (!present) return -1;
    const int64_t offset = next_;
    next_ += elements;
    return offset;
  }
  int64_t end() const { return next_; }

 private:
  int64_t next_ = 0;
};

}  // namespace

LayerOffsets layer_offsets(const ModelSpec& model, int64_t expert_degree) {
  const int64_t d = model.hidden;
  const int64_t qkv = model.attention_width() + 2 * model.kv_width();
  const int64_t f = model.experts ? model.experts->shared_ffn : model.ffn;
  const int64_t w = model.gated() ? 2 * f : f;
  const bool has_mlp = f > 0, has_bias = model.mlp_bias && !model.experts;
  const bool norm_bias = model.norm == Norm::layernorm, attends = model.attention;
  Cursor cursor;
  LayerOffsets at;
  at.norm1_weight = cursor.take(d, attends);
  at.norm1_bias = cursor.take(d, attends && norm_bias);
  at.qkv_weight = cursor.take(qkv * d, attends);
  at.qkv_bias = cursor.take(qkv, attends && model.qkv_bias);
  const bool of_token = model.qk_norm_of_token;
  at.q_norm =
      cursor.take(of_token ? model.attention_width() : model.head_dim, attends && model.qk_norm);
  at.k_norm = cursor.take(of_token ? model.kv_width() : model.head_dim, attends && model.qk_norm);
  at.out_weight = cursor.take(d * model.attention_width(), attends);
  at.out_bias = cursor.take(d, attends && model.attention_out_bias);
  at.sinks = cursor.take(model.heads, attends && model.attention_sinks);
  const bool both = model.norm_placement == NormPlacement::both;
  at.out_norm1_weight = cursor.take(d, attends && both);
  at.out_norm1_bias = cursor.take(d, attends && both && norm_bias);
  at.norm2_weight = cursor.take(d);
  at.norm2_bias = cursor.take(d, norm_bias);
  if (model.experts) {
    const Experts& e = *model.experts;
    at.router_weight = cursor.take(e.count * d);
    at.router_bias = cursor.take(e.count, e.router_bias);
    at.selection_bias = cursor.take(e.count, e.selection_bias);
  }
  at.up_weight = cursor.take(w * d, has_mlp);
  at.up_bias = cursor.take(w, has_bias);
  at.down_weight = cursor.take(d * f, has_mlp);
  at.down_bias = cursor.take(d, has_bias);
  at.out_norm2_weight = cursor.take(d, both);
  at.out_norm2_bias = cursor.take(d, both && norm_bias);
  if (!model.norms_inputs()) {
    std::swap(at.norm1_weight, at.out_norm1_weight);
    std::swap(at.norm1_bias, at.out_norm1_bias);
    std::swap(at.norm2_weight, at.out_norm2_weight);
    std::swap(at.norm2_bias, at.out_norm2_bias);
  }
  if (model.experts) {
    const Experts& e = *model.experts;
    at.shared_gate = cursor.take(d, e.shared_gate);
    const int64_t inner = model.gated() ? 2 * e.ffn : e.ffn, count = e.count / expert_degree;
    Cursor of_experts;
    of_experts.take(count * inner * d);
    at.experts_up_bias = of_experts.take(count * inner, model.mlp_bias);
    at.experts_down_weight = of_experts.take(count * d * e.ffn);
    at.experts_down_bias = of_experts.take(count * d, model.mlp_bias);
  }

  for (const ParameterUnit& unit : parameter_units(model)) {
    if (unit.kind == ParameterUnit::Kind::layer && unit.elements != cursor.end()) {
      throw bad_input("a layer of {} has {} parameters, the blocks know of {}; check its biases",
                      model.name, unit.elements, cursor.end());
    }
  }
  return at;
}

}  // namespace longspan
