#include "frameworks/knobs/configured_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "frameworks/knobs/expert_layers.h"
#include "models/catalog.h"

namespace longspan {
namespace {

bool says_sizes(const RunKnobs& knobs) {
  return knobs.count_or("layers", 0) > 0 && knobs.count_or("hidden", 0) > 0 &&
         knobs.count_or("heads", 0) > 0;
}

void set_latent(const RunKnobs& knobs, ModelSpec& model) {
  if (!knobs.flag("latent")) return;
  LatentAttention latent;
  latent.query_rank = knobs.count_or("query-rank", 0);
  latent.key_rank = knobs.count_or("key-rank", 512);
  latent.rotated_dim = knobs.count_or("rotated-dim", 64);
  latent.value_dim = knobs.count_or("value-dim", 128);
  model.head_dim = knobs.count_or("plain-dim", 128) + latent.rotated_dim;
  model.kv_heads = model.heads;
  model.qk_norm = false;
  model.latent = latent;
}

void set_experts(const RunKnobs& knobs, ModelSpec& model) {
  if (knobs.count_or("experts", 0) <= 1) return;
  Experts e;
  e.count = *knobs.count("experts");
  e.active = std::min(e.count, std::max<int64_t>(1, knobs.count_or("active-experts", 2)));
  e.ffn = knobs.count_or("expert-ffn", model.ffn);
  e.shared_ffn = knobs.count_or("shared-ffn", 0);
  model.experts = e;
  const std::vector<bool> with = expert_layers(knobs.text("expert-layers").value_or("1"),
                                               model.layers, knobs.count_or("dense-layers", 0));
  if (std::all_of(with.begin(), with.end(), [](bool has) { return has; })) return;
  for (const bool experts : with) {
    LayerRun run{1, true, model.ffn};
    run.experts = experts;
    if (!model.runs.empty() && model.runs.back().like(run)) {
      ++model.runs.back().layers;
    } else {
      model.runs.push_back(run);
    }
  }
}

// The model of the knobs' sizes; `vocabulary` where they leave it out. REQUIRES: says_sizes().
ModelSpec sized(const RunKnobs& knobs, int64_t vocabulary) {
  ModelSpec model;
  model.name = "config";
  model.layers = *knobs.count("layers");
  model.hidden = *knobs.count("hidden");
  model.heads = *knobs.count("heads");
  model.kv_heads = knobs.count_or("kv-heads", model.heads);
  model.head_dim = knobs.count_or("head-dim", model.hidden / model.heads);
  const bool gated = knobs.flag("gated");
  model.activation = gated ? Activation::swiglu : Activation::gelu;
  model.norm = gated ? Norm::rmsnorm : Norm::layernorm;
  const bool biased = !gated;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = biased;
  const int64_t four = 4 * model.hidden;
  model.ffn = knobs.count_or("ffn", gated ? (four * 2 / 3 + 63) / 64 * 64 : four);
  model.vocab = knobs.count_or("vocabulary", vocabulary);
  const int64_t multiple =
      std::max<int64_t>(1, knobs.count_or("vocabulary-multiple", 1) * knobs.count_or("tensor", 1));
  model.vocab = (model.vocab + multiple - 1) / multiple * multiple;
  model.max_positions = std::max<int64_t>(1, knobs.count_or("sequence", 4096));
  model.tied_embeddings = knobs.flag("tied");
  model.qk_norm = gated && knobs.flag("qk-norm");
  set_latent(knobs, model);
  set_experts(knobs, model);
  model.next_token_layers = knobs.count_or("next-token-layers", 0);
  return model;
}

struct SizeRow {
  const char* knob;
  int64_t ModelSpec::*size;
  const char* unit;
};

constexpr SizeRow kSizes[] = {
    {"layers", &ModelSpec::layers, "layers"},
    {"hidden", &ModelSpec::hidden, "columns"},
    {"heads", &ModelSpec::heads, "heads"},
    {"kv-heads", &ModelSpec::kv_heads, "KV heads"},
    {"head-dim", &ModelSpec::head_dim, "columns of a head"},
    {"ffn", &ModelSpec::ffn, "columns of the MLP"},
};

// The model that is given, as a config with experts trains it.
void reconcile_experts(const RunKnobs& knobs, const ModelSpec& given, const ModelSpec& own,
                       ModelSpec& model, std::vector<std::string>& notes) {
  if (knobs.has("latent")) model.latent = own.latent;
  if (knobs.has("next-token-layers")) model.next_token_layers = own.next_token_layers;
  if (!knobs.has("experts")) return;
  const auto sizes = [](const std::optional<Experts>& e) {
    return e ? fmt::format("{} experts of width {}, {} of them active", e->count, e->ffn, e->active)
             : std::string("no experts");
  };
  if (sizes(own.experts) != sizes(given.experts)) {
    notes.push_back(fmt::format("the config trains {}, while {} has {}", sizes(own.experts),
                                given.name, sizes(given.experts)));
  }
  model.experts = own.experts;
  model.runs = own.runs;
}

void refuse_contradictions(const RunKnobs& knobs, const ModelSpec& given,
                           const KnobPlaces& places) {
  if (!given.uniform()) return;
  for (const SizeRow& row : kSizes) {
    const std::optional<int64_t> said = knobs.count(row.knob);
    if (!said || *said == 0 || *said == given.*row.size) continue;
    throw bad_input("{}: {} has {} {}; give the model that the config trains, or leave one out",
                    places(row.knob), given.name, given.*row.size, row.unit);
  }
}

ModelSpec named(const std::string& name, const Framework& framework) {
  const auto known = framework.models.find(name);
  return load_model(known != framework.models.end() ? known->second : name);
}

bool names_another(const RunKnobs& knobs, const std::string& knob) {
  return knobs.has(knob) && knobs.text(knob) != knobs.text("model");
}

}  // namespace

std::optional<ModelSpec> other_model_of(const RunKnobs& knobs, const Framework& framework,
                                        const std::string& knob) {
  if (!names_another(knobs, knob)) return std::nullopt;
  try {
    return named(*knobs.text(knob), framework);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> unknown_models(const RunKnobs& knobs, const Framework& framework,
                                        const KnobPlaces& places) {
  std::vector<std::string> notes;
  for (const auto& [role, knob] :
       {std::pair("critic", "critic-name"), std::pair("reward-model", "reward-name")}) {
    const std::string place = knobs.text(role).value_or("none");
    if (place == "none" || place == "elsewhere" || !names_another(knobs, knob)) continue;
    if (other_model_of(knobs, framework, knob)) continue;
    const std::string note =
        fmt::format("{}: {} is not known, and is taken to be as large as the trained model",
                    places(knob), *knobs.text(knob));
    if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
  }
  return notes;
}

std::optional<ModelSpec> model_of(const RunKnobs& knobs, const Framework& framework) {
  std::optional<std::string> name = knobs.text("model");
  if (!name && knobs.has("model-family") && knobs.has("model-size")) {
    name = *knobs.text("model-family") + " " + *knobs.text("model-size");
  }
  if (name) return named(*name, framework);
  if (!says_sizes(knobs)) return std::nullopt;
  ModelSpec model = sized(knobs, 50257);
  validate(model, "config");
  return model;
}

ModelSpec reconcile(const RunKnobs& knobs, const ModelSpec& given, const KnobPlaces& places,
                    std::vector<std::string>& notes) {
  refuse_contradictions(knobs, given, places);
  // A framework whose keys cannot say whether there is a gate loads the model that it is given.
  if (!says_sizes(knobs) || !knobs.has("gated") || !given.uniform()) return given;
  const ModelSpec own = sized(knobs, given.vocab);
  ModelSpec model = given;
  for (const SizeRow& row : kSizes) model.*row.size = own.*row.size;
  model.vocab = own.vocab;
  model.tied_embeddings = own.tied_embeddings;
  if (knobs.has("qk-norm")) model.qk_norm = own.qk_norm;
  reconcile_experts(knobs, given, own, model, notes);
  const auto differ = [&](bool is, const std::string& own, const std::string& of_given) {
    if (is) {
      notes.push_back("the config trains " + own + ", while " + given.name + " has " + of_given);
    }
  };
  const auto counted = [](int64_t n, const char* unit) { return std::to_string(n) + " " + unit; };
  const bool gate = own.activation == Activation::swiglu;
  differ(gate != (given.activation == Activation::swiglu),
         gate ? "an MLP with a gate" : "an MLP without a gate", gate ? "none" : "one");
  differ(model.kv_heads != given.kv_heads, counted(model.kv_heads, "KV heads"),
         counted(given.kv_heads, "KV heads"));
  differ(model.qk_norm != given.qk_norm,
         model.qk_norm ? "norms of queries and keys" : "no norms of queries and keys",
         given.qk_norm ? "them" : "none");
  differ(model.ffn != given.ffn && !model.experts, counted(model.ffn, "columns in the MLP"),
         counted(given.ffn, "columns"));
  if (own.activation != given.activation) {
    model.activation = own.activation;
    model.norm = own.norm;
    model.qkv_bias = model.attention_out_bias = model.mlp_bias = own.mlp_bias;
  }
  validate(model, "config");
  return model;
}

}  // namespace longspan
