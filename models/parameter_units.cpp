#include <fmt/format.h>
#include <initializer_list>
#include <utility>

#include "base/units.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

using Init = ParameterTensor::Init;

// The names of tensors in one family of checkpoints.
struct Names {
  bool gpt2 = false;
  std::string layer(int64_t i) const {
    return fmt::format("{}.{}.", gpt2 ? "transformer.h" : "model.layers", i);
  }
  std::string norm1() const { return gpt2 ? "ln_1" : "input_layernorm"; }
  std::string norm2() const { return gpt2 ? "ln_2" : "post_attention_layernorm"; }
  std::string out() const { return gpt2 ? "attn.c_proj" : "self_attn.o_proj"; }
  std::string up() const { return gpt2 ? "mlp.c_fc" : "mlp.up_proj"; }
  std::string down() const { return gpt2 ? "mlp.c_proj" : "mlp.down_proj"; }
  std::string tokens() const { return gpt2 ? "transformer.wte" : "model.embed_tokens"; }
  std::string positions() const { return gpt2 ? "transformer.wpe" : "model.embed_positions"; }
  std::string final_norm() const { return gpt2 ? "transformer.ln_f" : "model.norm"; }
};

bool has_gpt2_names(const ModelSpec& model) {
  return model.positions == Positions::learned && model.norm == Norm::layernorm &&
         model.activation == Activation::gelu && !model.qk_norm;
}

// Appends tensors to one unit, contiguously.
class UnitBuilder {
 public:
  UnitBuilder(ParameterUnit::Kind kind, int64_t layer) {
    unit_.kind = kind;
    unit_.layer = layer;
  }

  void matrix(const std::string& name, int64_t rows, int64_t columns, Init init = Init::normal,
              bool transposed_in_file = false) {
    ParameterTensor tensor;
    tensor.name = name + ".weight";
    tensor.shape = {rows, columns};
    tensor.transposed_in_file = transposed_in_file;
    tensor.decays = true;
    tensor.init = init;
    append(std::move(tensor), checked_mul(rows, columns, name));
  }
  void vector(const std::string& name, int64_t size, Init init) {
    ParameterTensor tensor;
    tensor.name = name;
    tensor.shape = {size};
    tensor.init = init;
    append(std::move(tensor), size);
  }
  void bias(const std::string& name, int64_t size) { vector(name + ".bias", size, Init::zeros); }
  void norm(const std::string& name, const ModelSpec& model) {
    vector(name + ".weight", model.hidden, Init::ones);
    if (model.norm == Norm::layernorm) bias(name, model.hidden);
  }
  ParameterUnit take() { return std::move(unit_); }

 private:
  void append(ParameterTensor tensor, int64_t elements) {
    tensor.offset = unit_.elements;
    tensor.elements = elements;
    unit_.elements = checked_add(unit_.elements, elements, tensor.name);
    unit_.tensors.push_back(std::move(tensor));
  }

  ParameterUnit unit_;
};

void add_qkv(UnitBuilder& unit, const ModelSpec& model, const std::string& prefix, bool gpt2) {
  const int64_t a = checked_mul(model.heads, model.head_dim, "heads * head_dim");
  const int64_t g = checked_mul(model.kv_heads, model.head_dim, "kv_heads * head_dim");
  if (gpt2) {
    const std::string name = prefix + "attn.c_attn";
    const int64_t rows = checked_add(a, checked_mul(2, g, name), name);
    unit.matrix(name, rows, model.hidden, Init::normal, true);
    if (model.qkv_bias) unit.bias(name, rows);
    return;
  }
  const std::initializer_list<std::pair<const char*, int64_t>> parts{
      {"self_attn.q_proj", a}, {"self_attn.k_proj", g}, {"self_attn.v_proj", g}};
  for (const auto& [name, rows] : parts) unit.matrix(prefix + name, rows, model.hidden);
  if (model.qkv_bias) {
    for (const auto& [name, rows] : parts) unit.bias(prefix + name, rows);
  }
  if (model.qk_norm) {
    unit.vector(prefix + "self_attn.q_norm.weight", model.head_dim, Init::ones);
    unit.vector(prefix + "self_attn.k_norm.weight", model.head_dim, Init::ones);
  }
}

ParameterUnit layer_unit(const ModelSpec& model, const Names& names, int64_t index) {
  UnitBuilder unit(ParameterUnit::Kind::layer, index);
  const std::string prefix = names.layer(index);
  const bool gpt2 = names.gpt2;
  if (model.attention) {
    unit.norm(prefix + names.norm1(), model);
    add_qkv(unit, model, prefix, gpt2);
    const int64_t a = checked_mul(model.heads, model.head_dim, "heads * head_dim");
    unit.matrix(prefix + names.out(), model.hidden, a, Init::residual_normal, gpt2);
    if (model.attention_out_bias) unit.bias(prefix + names.out(), model.hidden);
  }
  unit.norm(prefix + names.norm2(), model);
  if (model.activation == Activation::swiglu) {
    unit.matrix(prefix + "mlp.gate_proj", model.ffn, model.hidden);
  }
  unit.matrix(prefix + names.up(), model.ffn, model.hidden, Init::normal, gpt2);
  if (model.mlp_bias) unit.bias(prefix + names.up(), model.ffn);
  unit.matrix(prefix + names.down(), model.hidden, model.ffn, Init::residual_normal, gpt2);
  if (model.mlp_bias) unit.bias(prefix + names.down(), model.hidden);
  return unit.take();
}

}  // namespace

std::vector<ParameterUnit> parameter_units(const ModelSpec& model) {
  const Names names{has_gpt2_names(model)};
  std::vector<ParameterUnit> units;

  UnitBuilder embedding(ParameterUnit::Kind::embedding, -1);
  embedding.matrix(names.tokens(), model.vocab, model.hidden);
  if (model.positions == Positions::learned) {
    embedding.matrix(names.positions(), model.max_positions, model.hidden);
  }
  units.push_back(embedding.take());

  int64_t layer = 0;
  for (const LayerRun& run : layer_runs(model)) {
    const ModelSpec alike = model_of_run(model, run);
    for (int64_t i = 0; i < run.layers; ++i) units.push_back(layer_unit(alike, names, layer++));
  }

  UnitBuilder head(ParameterUnit::Kind::head, -1);
  head.norm(names.final_norm(), model);
  if (!model.tied_embeddings) head.matrix("lm_head", model.vocab, model.hidden);
  units.push_back(head.take());
  return units;
}

}  // namespace longspan
