#include <fmt/format.h>
#include <initializer_list>
#include <utility>

#include "base/units.h"
#include "models/adapters.h"
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
  NormPlacement placement = NormPlacement::input;
  std::string norm1() const {
    if (gpt2) return "ln_1";
    return placement == NormPlacement::output ? "post_attention_layernorm" : "input_layernorm";
  }
  std::string norm2() const {
    if (gpt2) return "ln_2";
    return placement == NormPlacement::input    ? "post_attention_layernorm"
           : placement == NormPlacement::output ? "post_feedforward_layernorm"
                                                : "pre_feedforward_layernorm";
  }
  std::string out() const { return gpt2 ? "attn.c_proj" : "self_attn.o_proj"; }
  std::string up() const { return gpt2 ? "mlp.c_fc" : "mlp.up_proj"; }
  std::string down() const { return gpt2 ? "mlp.c_proj" : "mlp.down_proj"; }
  std::string tokens() const { return gpt2 ? "transformer.wte" : "model.embed_tokens"; }
  std::string positions() const { return gpt2 ? "transformer.wpe" : "model.embed_positions"; }
  std::string final_norm() const { return gpt2 ? "transformer.ln_f" : "model.norm"; }
};

bool has_gpt2_names(const ModelSpec& model) {
  return model.positions == Positions::learned && model.norm == Norm::layernorm &&
         model.activation == Activation::gelu && !model.qk_norm &&
         model.norm_placement == NormPlacement::input;
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
  // One that is not trained.
  void constant(const std::string& name, int64_t size) {
    vector(name, size, Init::zeros);
    unit_.tensors.back().trained = false;
  }
  void bias(const std::string& name, int64_t size) { vector(name + ".bias", size, Init::zeros); }
  // Matrices of all experts, one after another. `parts`: as ParameterTensor::expert_parts; without
  // them all experts are one tensor in files, in the format of gpt-oss.
  void matrices(const std::string& name, int64_t experts, int64_t rows, int64_t columns,
                std::vector<std::string> parts, Init init = Init::normal) {
    const bool own_format = parts.empty();
    ParameterTensor tensor;
    tensor.name = name;
    tensor.shape = {experts, rows, columns};
    tensor.decays = true;
    tensor.init = init;
    tensor.expert_parts = std::move(parts);
    tensor.transposed_in_file = own_format;
    tensor.interleaved_in_file = own_format && init == Init::normal;
    append(std::move(tensor), checked_mul(experts, checked_mul(rows, columns, name), name));
  }
  // Biases of all experts, which only gpt-oss has.
  void biases(const std::string& name, int64_t experts, int64_t size, bool interleaved) {
    vector(name, checked_mul(experts, size, name), Init::zeros);
    unit_.tensors.back().shape = {experts, size};
    unit_.tensors.back().interleaved_in_file = interleaved;
  }
  void norm(const std::string& name, const ModelSpec& model) {
    vector(name + ".weight", model.hidden, model.norm_offset ? Init::zeros : Init::ones);
    if (model.norm == Norm::layernorm) bias(name, model.hidden);
  }
  ParameterUnit take(bool frozen = false) {
    unit_.trained = !frozen;
    return std::move(unit_);
  }

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
  std::vector<std::pair<const char*, int64_t>> parts{
      {"self_attn.q_proj", a}, {"self_attn.k_proj", g}, {"self_attn.v_proj", g}};
  if (model.fused_projections) {
    parts = {{"self_attn.qkv_proj", checked_add(a, checked_mul(2, g, "qkv"), "qkv")}};
  }
  for (const auto& [name, rows] : parts) unit.matrix(prefix + name, rows, model.hidden);
  if (model.qkv_bias) {
    for (const auto& [name, rows] : parts) unit.bias(prefix + name, rows);
  }
  if (model.qk_norm) {
    const Init init = model.norm_offset ? Init::zeros : Init::ones;
    const bool all = model.qk_norm_of_token;
    unit.vector(prefix + "self_attn.q_norm.weight", all ? a : model.head_dim, init);
    unit.vector(prefix + "self_attn.k_norm.weight", all ? g : model.head_dim, init);
  }
}

void add_latent_qkv(UnitBuilder& unit, const ModelSpec& model, const std::string& prefix) {
  const LatentAttention& l = *model.latent;
  const int64_t a = checked_mul(model.heads, model.head_dim, "heads * head_dim");
  const int64_t plain = model.head_dim - l.rotated_dim + l.value_dim;
  if (l.query_rank > 0) {
    unit.matrix(prefix + "self_attn.q_a_proj", l.query_rank, model.hidden);
    unit.vector(prefix + "self_attn.q_a_layernorm.weight", l.query_rank, Init::ones);
    unit.matrix(prefix + "self_attn.q_b_proj", a, l.query_rank);
  } else {
    unit.matrix(prefix + "self_attn.q_proj", a, model.hidden);
  }
  unit.matrix(prefix + "self_attn.kv_a_proj_with_mqa", l.key_rank + l.rotated_dim, model.hidden);
  unit.vector(prefix + "self_attn.kv_a_layernorm.weight", l.key_rank, Init::ones);
  unit.matrix(prefix + "self_attn.kv_b_proj", checked_mul(model.heads, plain, "kv_b_proj"),
              l.key_rank);
}

// A gated or plain MLP of width `ffn`, without the GPT-2 form of its files.
void add_mlp(UnitBuilder& unit, const ModelSpec& model, const std::string& prefix, int64_t ffn) {
  const bool fused = model.fused_projections;
  if (fused) {
    unit.matrix(prefix + "gate_up_proj", checked_mul(2, ffn, "ffn"), model.hidden);
  } else {
    if (model.gated()) unit.matrix(prefix + "gate_proj", ffn, model.hidden);
    unit.matrix(prefix + "up_proj", ffn, model.hidden);
  }
  unit.matrix(prefix + "down_proj", model.hidden, ffn, Init::residual_normal);
}

// The names of a layer's mixture of experts.
struct ExpertNames {
  explicit ExpertNames(const Experts& experts) : format(experts.format) {}
  Experts::Format format;
  std::string mlp() const {
    return format == Experts::Format::mixtral ? "block_sparse_moe." : "mlp.";
  }
  std::string router() const {
    return mlp() + (format == Experts::Format::gpt_oss ? "router" : "gate");
  }
  // The tensors of one expert in files.
  std::vector<std::string> first(bool gated) const {
    if (format == Experts::Format::gpt_oss) return {};
    if (!gated) return {"up_proj"};
    if (format == Experts::Format::mixtral) return {"w1", "w3"};
    return {"gate_proj", "up_proj"};
  }
  std::vector<std::string> last() const {
    if (format == Experts::Format::gpt_oss) return {};
    return {format == Experts::Format::mixtral ? "w2" : "down_proj"};
  }
};

// What replaces the MLP in the layer's own unit: the router and the shared experts.
void add_router(UnitBuilder& unit, const ModelSpec& model, const std::string& prefix) {
  const Experts& e = *model.experts;
  const ExpertNames names(e);
  unit.matrix(prefix + names.router(), e.count, model.hidden);
  if (e.router_bias) unit.bias(prefix + names.router(), e.count);
  if (e.selection_bias)
    unit.constant(prefix + names.router() + ".e_score_correction_bias", e.count);
  if (e.shared_ffn == 0) return;
  // Qwen2-MoE, which has the gate, has one.
  const char* shared = e.shared_gate ? "shared_expert." : "shared_experts.";
  add_mlp(unit, model, prefix + names.mlp() + shared, e.shared_ffn);
  if (e.shared_gate) unit.matrix(prefix + names.mlp() + "shared_expert_gate", 1, model.hidden);
}

// The matrices of all experts. In files most formats have a tensor for each expert.
ParameterUnit experts_unit(const ModelSpec& model, const Names& names, int64_t layer) {
  const Experts& e = *model.experts;
  UnitBuilder unit(ParameterUnit::Kind::experts, layer);
  const std::string prefix = names.layer(layer) + ExpertNames(e).mlp() + "experts.";
  const int64_t inner = model.gated() ? checked_mul(2, e.ffn, "experts.ffn") : e.ffn;
  const bool biased = model.mlp_bias;
  const ExpertNames in_files(e);
  unit.matrices(prefix + "gate_up_proj", e.count, inner, model.hidden,
                in_files.first(model.gated()));
  if (biased) unit.biases(prefix + "gate_up_proj_bias", e.count, inner, true);
  unit.matrices(prefix + "down_proj", e.count, model.hidden, e.ffn, in_files.last(),
                Init::residual_normal);
  if (biased) unit.biases(prefix + "down_proj_bias", e.count, model.hidden, false);
  return unit.take(model.backward != LayerBackward::weights);
}

// The adapters of a layer, with peft's names after its prefix.
ParameterUnit adapters_unit(const ModelSpec& model, const Names& names, int64_t layer) {
  UnitBuilder unit(ParameterUnit::Kind::adapters, layer);
  const int64_t rank = model.adapters->rank;
  for (const AdapterShape& shape : adapter_shapes(model)) {
    const char* part = shape.projection < Projection::gate ? "self_attn." : "mlp.";
    const std::string name = names.layer(layer) + part + name_of(shape.projection);
    unit.matrix(name + ".lora_A", rank, shape.in, Init::uniform);
    unit.matrix(name + ".lora_B", shape.out, rank, Init::zeros);
  }
  return unit.take();
}

// Appends a layer without its experts.
void add_layer(UnitBuilder& unit, const ModelSpec& model, const Names& names, int64_t index) {
  const std::string prefix = names.layer(index);
  const bool gpt2 = names.gpt2;
  if (model.attention) {
    unit.norm(prefix + names.norm1(), model);
    if (model.latent) {
      add_latent_qkv(unit, model, prefix);
    } else {
      add_qkv(unit, model, prefix, gpt2);
    }
    const int64_t head = model.latent ? model.latent->value_dim : model.head_dim;
    const int64_t a = checked_mul(model.heads, head, "heads * head_dim");
    unit.matrix(prefix + names.out(), model.hidden, a, Init::residual_normal, gpt2);
    if (model.attention_out_bias) unit.bias(prefix + names.out(), model.hidden);
    if (model.attention_sinks) unit.vector(prefix + "self_attn.sinks", model.heads, Init::zeros);
    if (model.norm_placement == NormPlacement::both) {
      unit.norm(prefix + "post_attention_layernorm", model);
    }
  }
  unit.norm(prefix + names.norm2(), model);
  if (model.experts) {
    add_router(unit, model, prefix);
  } else if (!model.mlp_bias && !gpt2) {
    add_mlp(unit, model, prefix + "mlp.", model.ffn);
  } else {
    unit.matrix(prefix + names.up(), model.ffn, model.hidden, Init::normal, gpt2);
    if (model.mlp_bias) unit.bias(prefix + names.up(), model.ffn);
    unit.matrix(prefix + names.down(), model.hidden, model.ffn, Init::residual_normal, gpt2);
    if (model.mlp_bias) unit.bias(prefix + names.down(), model.hidden);
  }
  if (model.norm_placement == NormPlacement::both) {
    unit.norm(prefix + "post_feedforward_layernorm", model);
  }
}

ParameterUnit layer_unit(const ModelSpec& model, const Names& names, int64_t index) {
  UnitBuilder unit(ParameterUnit::Kind::layer, index);
  add_layer(unit, model, names, index);
  return unit.take(model.backward != LayerBackward::weights);
}

// A layer that predicts the token after the next, without its experts.
ParameterUnit next_token_unit(const ModelSpec& model, const Names& names, int64_t index) {
  UnitBuilder unit(ParameterUnit::Kind::layer, index);
  const std::string prefix = names.layer(index);
  unit.norm(prefix + "enorm", model);
  unit.norm(prefix + "hnorm", model);
  unit.matrix(prefix + "eh_proj", model.hidden, checked_mul(2, model.hidden, "eh_proj"));
  add_layer(unit, model, names, index);
  unit.norm(prefix + "shared_head.norm", model);
  return unit.take();
}

}  // namespace

std::vector<ParameterUnit> parameter_units(const ModelSpec& model) {
  const Names names{has_gpt2_names(model), model.norm_placement};
  std::vector<ParameterUnit> units;

  UnitBuilder embedding(ParameterUnit::Kind::embedding, -1);
  embedding.matrix(names.tokens(), model.vocab, model.hidden);
  if (model.positions == Positions::learned) {
    embedding.matrix(names.positions(), model.max_positions, model.hidden);
  }
  units.push_back(embedding.take(model.frozen_embedding));

  int64_t layer = 0;
  for (const LayerRun& run : layer_runs(model)) {
    const ModelSpec alike = model_of_run(model, run);
    for (int64_t i = 0; i < run.layers; ++i) units.push_back(layer_unit(alike, names, layer++));
  }

  UnitBuilder head(ParameterUnit::Kind::head, -1);
  head.norm(names.final_norm(), model);
  if (!model.tied_embeddings) head.matrix("lm_head", model.vocab, model.hidden);
  units.push_back(head.take(model.frozen_head));

  layer = 0;
  for (const LayerRun& run : layer_runs(model)) {
    const ModelSpec alike = model_of_run(model, run);
    for (int64_t i = 0; i < run.layers; ++i, ++layer) {
      if (alike.experts) units.push_back(experts_unit(alike, names, layer));
    }
  }
  layer = 0;
  for (const LayerRun& run : layer_runs(model)) {
    const ModelSpec alike = model_of_run(model, run);
    for (int64_t i = 0; i < run.layers && model.adapters; ++i) {
      units.push_back(adapters_unit(alike, names, layer++));
    }
  }
  for (ParameterUnit& unit : next_token_units(model)) units.push_back(std::move(unit));
  return units;
}

std::vector<ParameterUnit> next_token_units(const ModelSpec& model) {
  std::vector<ParameterUnit> units;
  if (model.next_token_layers == 0) return units;
  const Names names{has_gpt2_names(model), model.norm_placement};
  const ModelSpec alike = model_of_run(model, layer_runs(model).back());
  for (int64_t i = 0; i < model.next_token_layers; ++i) {
    units.push_back(next_token_unit(alike, names, model.layers + i));
  }
  for (int64_t i = 0; alike.experts && i < model.next_token_layers; ++i) {
    units.push_back(experts_unit(alike, names, model.layers + i));
  }
  return units;
}

}  // namespace longspan
