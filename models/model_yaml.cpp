// The YAML form of a model: one mapping with the fields of ModelSpec under their own names.
#include <fmt/format.h>

#include "models/catalog.h"
#include "models/model_check.h"

namespace longspan {
namespace {

// The shortest decimal that reads back to the same double.
std::string exact(double value) { return fmt::format("{}", value); }

bool flag_or_false(const YamlMap& yaml, const std::string& key) {
  return yaml.has(key) && yaml.flag(key);
}

RopeScaling read_scaling(const YamlMap& yaml) {
  RopeScaling scaling;
  scaling.type = yaml.one_of<RopeType>(
      "type",
      {{"linear", RopeType::linear}, {"llama3", RopeType::llama3}, {"yarn", RopeType::yarn}});
  scaling.factor = yaml.real("factor", 0);
  if (scaling.type == RopeType::llama3) {
    scaling.low_freq_factor = yaml.real("low_freq_factor", 0);
    scaling.high_freq_factor = yaml.real("high_freq_factor", 0);
  }
  if (scaling.type == RopeType::yarn) {
    const auto real = [&](const char* key, double usual) {
      return yaml.has(key) ? yaml.real(key, 0) : usual;
    };
    scaling.beta_slow = real("beta_slow", scaling.beta_slow);
    scaling.beta_fast = real("beta_fast", scaling.beta_fast);
    scaling.attention_factor = real("attention_factor", yarn_attention_factor(scaling.factor));
  }
  if (scaling.type != RopeType::linear) {
    scaling.original_max_positions = yaml.whole("original_max_positions", 1);
  }
  yaml.finish();
  return scaling;
}

// [{layers: 30}, {layers: 6, attention: false, fused: true}, {layers: 8, tokens: 0.5}]: fields that
// a run leaves out have the model's value. The model's `layers` counts layers before fusion.
void read_runs(const YamlMap& whole, ModelSpec& model) {
  int64_t layers = 0;
  for (const YamlMap& yaml : whole.maps("runs")) {
    LayerRun run;
    run.layers = yaml.whole("layers", 1, model.layers);
    layers += run.layers;
    run.attention = !yaml.has("attention") || yaml.flag("attention");
    run.ffn = yaml.has("ffn") ? yaml.whole("ffn", 1) : model.ffn;
    if (yaml.has("tokens")) run.tokens = yaml.real("tokens", 0);
    const bool fused = flag_or_false(yaml, "fused");
    if (fused && run.attention) {
      throw yaml.error("fused", "only layers without attention can be fused; set attention: false");
    }
    yaml.finish();
    const std::vector<LayerRun> all = fused ? fuse({run}) : std::vector<LayerRun>{run};
    model.runs.insert(model.runs.end(), all.begin(), all.end());
  }
  if (layers != model.layers) {
    throw whole.error("runs", fmt::format("expected {} layers in all, as many as the model has, "
                                          "got {}",
                                          model.layers, layers));
  }
  model.layers = 0;
  for (const LayerRun& run : model.runs) model.layers += run.layers;
}

}  // namespace

ModelSpec read_model(const YamlMap& yaml) {
  ModelSpec model;
  model.name = yaml.text("name");
  model.layers = yaml.whole("layers", 1);
  model.hidden = yaml.whole("hidden", 1);
  model.heads = yaml.whole("heads", 1);
  model.kv_heads = yaml.has("kv_heads") ? yaml.whole("kv_heads", 1) : model.heads;
  if (yaml.has("head_dim")) {
    model.head_dim = yaml.whole("head_dim", 1);
  } else if (model.hidden % model.heads == 0) {
    model.head_dim = model.hidden / model.heads;
  } else {
    throw yaml.error("head_dim", "missing, and hidden is not a multiple of heads");
  }
  model.ffn = yaml.whole("ffn", 1);
  model.vocab = yaml.whole("vocab", 1);
  model.max_positions = yaml.whole("max_positions", 1);
  model.norm =
      yaml.one_of<Norm>("norm", {{"layernorm", Norm::layernorm}, {"rmsnorm", Norm::rmsnorm}});
  model.activation = yaml.one_of<Activation>(
      "activation", {{"gelu", Activation::gelu}, {"swiglu", Activation::swiglu}});
  model.positions = yaml.one_of<Positions>(
      "positions", {{"learned", Positions::learned}, {"rope", Positions::rope}});
  model.norm_eps = yaml.real("norm_eps", 0);
  if (yaml.has("rope_theta")) {
    model.rope_theta = yaml.real("rope_theta", 0);
  } else if (model.positions == Positions::rope) {
    throw yaml.error("rope_theta", "missing (needed for positions: rope)");
  }
  if (yaml.has("rope_scaling")) model.rope_scaling = read_scaling(yaml.map("rope_scaling"));
  model.qkv_bias = flag_or_false(yaml, "qkv_bias");
  model.attention_out_bias = flag_or_false(yaml, "attention_out_bias");
  model.mlp_bias = flag_or_false(yaml, "mlp_bias");
  model.qk_norm = flag_or_false(yaml, "qk_norm");
  model.tied_embeddings = flag_or_false(yaml, "tied_embeddings");
  if (yaml.has("only_planned")) model.only_planned = yaml.text("only_planned");
  if (yaml.has("runs")) read_runs(yaml, model);
  yaml.finish();
  if (const auto problem = find_problem(model)) throw yaml.error(problem->field, problem->what);
  return model;
}

void write_model(YAML::Emitter& out, const ModelSpec& model) {
  const auto field = [&out](const char* key, const auto& value) {
    out << YAML::Key << key << YAML::Value << value;
  };
  out << YAML::BeginMap;
  field("name", model.name);
  field("layers", model.layers);
  field("hidden", model.hidden);
  field("heads", model.heads);
  field("kv_heads", model.kv_heads);
  field("head_dim", model.head_dim);
  field("ffn", model.ffn);
  field("vocab", model.vocab);
  field("max_positions", model.max_positions);
  field("norm", model.norm == Norm::layernorm ? "layernorm" : "rmsnorm");
  field("activation", model.activation == Activation::gelu ? "gelu" : "swiglu");
  field("positions", model.positions == Positions::learned ? "learned" : "rope");
  field("norm_eps", exact(model.norm_eps));
  field("rope_theta", exact(model.rope_theta));
  if (model.rope_scaling) {
    const RopeScaling& scaling = *model.rope_scaling;
    out << YAML::Key << "rope_scaling" << YAML::Value << YAML::Flow << YAML::BeginMap;
    const bool yarn = scaling.type == RopeType::yarn, llama3 = scaling.type == RopeType::llama3;
    field("type", name_of(scaling.type));
    field("factor", exact(scaling.factor));
    if (llama3) {
      field("low_freq_factor", exact(scaling.low_freq_factor));
      field("high_freq_factor", exact(scaling.high_freq_factor));
    }
    if (yarn) {
      field("beta_slow", exact(scaling.beta_slow));
      field("beta_fast", exact(scaling.beta_fast));
      field("attention_factor", exact(scaling.attention_factor));
    }
    if (llama3 || yarn) field("original_max_positions", scaling.original_max_positions);
    out << YAML::EndMap;
  }
  field("qkv_bias", model.qkv_bias);
  field("attention_out_bias", model.attention_out_bias);
  field("mlp_bias", model.mlp_bias);
  field("qk_norm", model.qk_norm);
  field("tied_embeddings", model.tied_embeddings);
  if (!model.only_planned.empty()) field("only_planned", model.only_planned);
  if (!model.uniform()) {
    out << YAML::Key << "runs" << YAML::Value << YAML::BeginSeq;
    for (const LayerRun& run : model.runs) {
      out << YAML::Flow << YAML::BeginMap;
      field("layers", run.layers);
      field("attention", run.attention);
      field("ffn", run.ffn);
      field("tokens", exact(run.tokens));
      out << YAML::EndMap;
    }
    out << YAML::EndSeq;
  }
  out << YAML::EndMap;
}

}  // namespace longspan
