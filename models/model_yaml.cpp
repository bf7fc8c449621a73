// The YAML form of a model: one mapping with the fields of ModelSpec under their own names.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "models/adapters.h"
#include "models/catalog.h"
#include "models/model_check.h"

namespace longspan {
namespace {

// The shortest decimal that reads back to the same double.
std::string exact(double value) { return fmt::format("{}", value); }

template <class E>
using Words = YamlMap::Names<E>;

const Words<Activation> kActivations{{"gelu", Activation::gelu},
                                     {"swiglu", Activation::swiglu},
                                     {"geglu", Activation::geglu},
                                     {"clamped_swiglu", Activation::clamped_swiglu}};
const Words<Positions> kPositions{
    {"learned", Positions::learned}, {"rope", Positions::rope}, {"none", Positions::none}};
const Words<NormPlacement> kNormPlacements{{"input", NormPlacement::input},
                                           {"output", NormPlacement::output},
                                           {"both", NormPlacement::both}};
const Words<LayerPositions> kLayerPositions{{"model", LayerPositions::model},
                                            {"local", LayerPositions::local},
                                            {"none", LayerPositions::none}};
const Words<LayerBackward> kBackwards{{"weights", LayerBackward::weights},
                                      {"inputs", LayerBackward::inputs},
                                      {"none", LayerBackward::none}};
const Words<Experts::Scores> kScores{{"softmax", Experts::Scores::softmax},
                                     {"softmax_of_chosen", Experts::Scores::softmax_of_chosen},
                                     {"sigmoid", Experts::Scores::sigmoid}};
const Words<Experts::Format> kFormats{{"qwen", Experts::Format::qwen},
                                      {"mixtral", Experts::Format::mixtral},
                                      {"gpt_oss", Experts::Format::gpt_oss}};

template <class E>
std::string word_of(const Words<E>& words, E value) {
  const auto word = std::find_if(words.begin(), words.end(),
                                 [&](const auto& known) { return known.second == value; });
  return std::string(word->first);
}

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
    scaling.truncates = !yaml.has("truncates") || yaml.flag("truncates");
  }
  if (scaling.type != RopeType::linear) {
    scaling.original_max_positions = yaml.whole("original_max_positions", 1);
  }
  yaml.finish();
  return scaling;
}

Experts read_experts(const YamlMap& yaml) {
  Experts e;
  e.count = yaml.whole("count", 1);
  e.active = yaml.whole("active", 1);
  e.ffn = yaml.whole("ffn", 1);
  if (yaml.has("shared_ffn")) e.shared_ffn = yaml.whole("shared_ffn", 0);
  e.shared_gate = flag_or_false(yaml, "shared_gate");
  if (yaml.has("scores")) e.scores = yaml.one_of<Experts::Scores>("scores", kScores);
  e.normalised = !yaml.has("normalised") || yaml.flag("normalised");
  if (yaml.has("scale")) e.scale = yaml.real("scale", 0);
  e.router_bias = flag_or_false(yaml, "router_bias");
  e.selection_bias = flag_or_false(yaml, "selection_bias");
  if (yaml.has("groups")) e.groups = yaml.whole("groups", 1);
  if (yaml.has("active_groups")) e.active_groups = yaml.whole("active_groups", 1);
  if (yaml.has("auxiliary_loss")) e.auxiliary_loss = yaml.real("auxiliary_loss", 0);
  if (yaml.has("format")) e.format = yaml.one_of<Experts::Format>("format", kFormats);
  yaml.finish();
  return e;
}

Adapters read_adapters(const YamlMap& yaml) {
  Adapters adapters;
  adapters.rank = yaml.whole("rank", 1);
  adapters.alpha = yaml.real("alpha", 0);
  adapters.on = parse_projections(yaml.text("projections"));
  yaml.finish();
  return adapters;
}

LatentAttention read_latent(const YamlMap& yaml) {
  LatentAttention latent;
  if (yaml.has("query_rank")) latent.query_rank = yaml.whole("query_rank", 0);
  latent.key_rank = yaml.whole("key_rank", 1);
  latent.rotated_dim = yaml.whole("rotated_dim", 1);
  latent.value_dim = yaml.whole("value_dim", 1);
  yaml.finish();
  return latent;
}

Documents read_documents(const YamlMap& model) {
  std::map<int64_t, int64_t> counts;
  double tokens = 0;
  for (const YamlMap& yaml : model.maps("documents")) {
    const int64_t length = yaml.whole("tokens", 1), count = yaml.whole("count", 1);
    tokens += static_cast<double>(length) * static_cast<double>(count);
    if (tokens >= 0x1p53) {
      throw yaml.error("count", "the documents have 2^53 tokens or more in all");
    }
    counts[length] += count;
    yaml.finish();
  }
  if (counts.empty()) throw model.error("documents", "expected lengths, got none");
  return Documents(counts);
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
    run.window = yaml.has("window") ? yaml.whole("window", 0) : model.window;
    run.span = yaml.has("span") ? yaml.whole("span", 0) : model.span;
    run.experts = yaml.has("experts") ? yaml.flag("experts") : model.experts.has_value();
    if (yaml.has("positions")) {
      run.positions = yaml.one_of<LayerPositions>("positions", kLayerPositions);
    }
    if (yaml.has("backward")) {
      run.backward = yaml.one_of<LayerBackward>("backward", kBackwards);
    }
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
  model.activation = yaml.one_of<Activation>("activation", kActivations);
  model.positions = yaml.one_of<Positions>("positions", kPositions);
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
  model.qk_norm_of_token = flag_or_false(yaml, "qk_norm_of_token");
  if (yaml.has("norm_placement")) {
    model.norm_placement = yaml.one_of<NormPlacement>("norm_placement", kNormPlacements);
  }
  model.norm_offset = flag_or_false(yaml, "norm_offset");
  const auto real = [&](const char* key, double& value) {
    if (yaml.has(key)) value = yaml.real(key, 0);
  };
  real("embedding_scale", model.embedding_scale);
  real("attention_scale", model.attention_scale);
  real("rotary_share", model.rotary_share);
  real("local_rope_theta", model.local_rope_theta);
  if (yaml.has("window")) model.window = yaml.whole("window", 0);
  if (yaml.has("span")) model.span = yaml.whole("span", 0);
  if (yaml.has("documents")) model.documents = read_documents(yaml);
  model.attention_sinks = flag_or_false(yaml, "attention_sinks");
  if (yaml.has("latent")) model.latent = read_latent(yaml.map("latent"));
  if (yaml.has("next_token_layers")) {
    model.next_token_layers = yaml.whole("next_token_layers", 0);
  }
  if (yaml.has("experts")) model.experts = read_experts(yaml.map("experts"));
  model.fused_projections = flag_or_false(yaml, "fused_projections");
  model.tied_embeddings = flag_or_false(yaml, "tied_embeddings");
  if (yaml.has("only_planned")) model.only_planned = yaml.text("only_planned");
  model.frozen_embedding = flag_or_false(yaml, "frozen_embedding");
  model.frozen_head = flag_or_false(yaml, "frozen_head");
  if (yaml.has("backward")) model.backward = yaml.one_of<LayerBackward>("backward", kBackwards);
  model.nf4 = flag_or_false(yaml, "nf4");
  if (yaml.has("adapters")) model.adapters = read_adapters(yaml.map("adapters"));
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
  field("activation", word_of(kActivations, model.activation));
  field("positions", word_of(kPositions, model.positions));
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
      if (!scaling.truncates) field("truncates", false);
    }
    if (llama3 || yarn) field("original_max_positions", scaling.original_max_positions);
    out << YAML::EndMap;
  }
  field("qkv_bias", model.qkv_bias);
  field("attention_out_bias", model.attention_out_bias);
  field("mlp_bias", model.mlp_bias);
  field("qk_norm", model.qk_norm);
  // Rare features are left out where a model does not have them.
  const auto rare = [&](const char* key, const auto& value, const auto& usual) {
    if (value != usual) field(key, value);
  };
  const auto rare_real = [&](const char* key, double value, double usual) {
    if (value != usual) field(key, exact(value));
  };
  rare("qk_norm_of_token", model.qk_norm_of_token, false);
  if (model.norm_placement != NormPlacement::input) {
    field("norm_placement", word_of(kNormPlacements, model.norm_placement));
  }
  rare("norm_offset", model.norm_offset, false);
  rare_real("embedding_scale", model.embedding_scale, 1);
  rare_real("attention_scale", model.attention_scale, 0);
  rare_real("rotary_share", model.rotary_share, 1);
  rare_real("local_rope_theta", model.local_rope_theta, 0);
  rare("window", model.window, int64_t{0});
  rare("span", model.span, int64_t{0});
  if (!model.documents.empty()) {
    out << YAML::Key << "documents" << YAML::Value << YAML::Flow << YAML::BeginSeq;
    for (const Documents::Length& length : model.documents.lengths()) {
      out << YAML::BeginMap;
      field("tokens", length.tokens);
      field("count", length.count);
      out << YAML::EndMap;
    }
    out << YAML::EndSeq;
  }
  rare("attention_sinks", model.attention_sinks, false);
  if (model.latent) {
    const LatentAttention& l = *model.latent;
    out << YAML::Key << "latent" << YAML::Value << YAML::Flow << YAML::BeginMap;
    rare("query_rank", l.query_rank, int64_t{0});
    field("key_rank", l.key_rank);
    field("rotated_dim", l.rotated_dim);
    field("value_dim", l.value_dim);
    out << YAML::EndMap;
  }
  rare("next_token_layers", model.next_token_layers, int64_t{0});
  if (model.experts) {
    const Experts& e = *model.experts;
    out << YAML::Key << "experts" << YAML::Value << YAML::Flow << YAML::BeginMap;
    field("count", e.count);
    field("active", e.active);
    field("ffn", e.ffn);
    rare("shared_ffn", e.shared_ffn, int64_t{0});
    rare("shared_gate", e.shared_gate, false);
    field("scores", word_of(kScores, e.scores));
    field("normalised", e.normalised);
    rare_real("scale", e.scale, 1);
    rare("router_bias", e.router_bias, false);
    rare("selection_bias", e.selection_bias, false);
    rare("groups", e.groups, int64_t{1});
    rare("active_groups", e.active_groups, int64_t{1});
    rare_real("auxiliary_loss", e.auxiliary_loss, 0);
    field("format", word_of(kFormats, e.format));
    out << YAML::EndMap;
  }
  rare("fused_projections", model.fused_projections, false);
  field("tied_embeddings", model.tied_embeddings);
  if (!model.only_planned.empty()) field("only_planned", model.only_planned);
  rare("frozen_embedding", model.frozen_embedding, false);
  rare("frozen_head", model.frozen_head, false);
  if (model.backward != LayerBackward::weights) {
    field("backward", word_of(kBackwards, model.backward));
  }
  rare("nf4", model.nf4, false);
  if (model.adapters) {
    std::string names = projections_text(*model.adapters);
    std::erase(names, ' ');
    out << YAML::Key << "adapters" << YAML::Value << YAML::Flow << YAML::BeginMap;
    field("rank", model.adapters->rank);
    field("alpha", exact(model.adapters->alpha));
    field("projections", names);
    out << YAML::EndMap;
  }
  if (!model.uniform()) {
    out << YAML::Key << "runs" << YAML::Value << YAML::BeginSeq;
    for (const LayerRun& run : model.runs) {
      out << YAML::Flow << YAML::BeginMap;
      field("layers", run.layers);
      field("attention", run.attention);
      field("ffn", run.ffn);
      field("tokens", exact(run.tokens));
      if (run.window != model.window) field("window", run.window);
      if (run.span != model.span) field("span", run.span);
      if (run.experts != model.experts.has_value()) field("experts", run.experts);
      if (run.positions != LayerPositions::model) {
        field("positions", word_of(kLayerPositions, run.positions));
      }
      if (run.backward != LayerBackward::weights) {
        field("backward", word_of(kBackwards, run.backward));
      }
      out << YAML::EndMap;
    }
    out << YAML::EndSeq;
  }
  out << YAML::EndMap;
}

}  // namespace longspan
