#include "models/hf_layers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/units.h"

namespace longspan::hf {
namespace {

// The fields of a mixture of experts in one architecture.
struct ExpertFields {
  const char* model_type;
  const char *count, *other_count;
  int64_t usual_count = 0, usual_active = 0;
  const char* ffn;
  bool normalised = false;
  const char* normalised_key = "";
  Experts::Scores scores = Experts::Scores::softmax;
  Experts::Format format = Experts::Format::qwen;
};

constexpr std::array<ExpertFields, 7> kExpertFields{{
    {.model_type = "mixtral",
     .count = "num_local_experts",
     .other_count = "num_experts",
     .usual_count = 8,
     .usual_active = 2,
     .ffn = "intermediate_size",
     .normalised = true,
     .format = Experts::Format::mixtral},
    {.model_type = "qwen3_moe",
     .count = "num_experts",
     .other_count = "num_local_experts",
     .usual_count = 128,
     .usual_active = 8,
     .ffn = "moe_intermediate_size",
     .normalised_key = "norm_topk_prob"},
    {.model_type = "olmoe",
     .count = "num_experts",
     .other_count = "num_local_experts",
     .usual_count = 64,
     .usual_active = 8,
     .ffn = "intermediate_size",
     .normalised_key = "norm_topk_prob"},
    {.model_type = "gpt_oss",
     .count = "num_local_experts",
     .other_count = "num_experts",
     .usual_count = 128,
     .usual_active = 4,
     .ffn = "intermediate_size",
     .normalised = true,
     .scores = Experts::Scores::softmax_of_chosen,
     .format = Experts::Format::gpt_oss},
    {.model_type = "glm4_moe",
     .count = "n_routed_experts",
     .other_count = "num_local_experts",
     .usual_count = 128,
     .usual_active = 8,
     .ffn = "moe_intermediate_size",
     .normalised = true,
     .normalised_key = "norm_topk_prob",
     .scores = Experts::Scores::sigmoid},
    {.model_type = "deepseek_v3",
     .count = "n_routed_experts",
     .other_count = "num_local_experts",
     .usual_count = 256,
     .usual_active = 8,
     .ffn = "moe_intermediate_size",
     .normalised = true,
     .normalised_key = "norm_topk_prob",
     .scores = Experts::Scores::sigmoid},
    {.model_type = "deepseek_v2",
     .count = "n_routed_experts",
     .other_count = "num_experts",
     .usual_count = 64,
     .usual_active = 6,
     .ffn = "moe_intermediate_size",
     .normalised_key = "norm_topk_prob"},
}};

const ExpertFields* expert_fields(const std::string& model_type) {
  const auto found =
      std::find_if(kExpertFields.begin(), kExpertFields.end(),
                   [&](const ExpertFields& f) { return model_type == f.model_type; });
  return found == kExpertFields.end() ? nullptr : &*found;
}

// Versions of Transformers write one key or the other.
int64_t count_of(const Fields& config, const ExpertFields& fields) {
  const bool usual = config.is_first(fields.count, config, fields.other_count);
  return config.whole(usual ? fields.count : fields.other_count, fields.usual_count);
}
// Transformers computes the loss for these alone.
bool takes_auxiliary_loss(const std::string& type) {
  return type == "mixtral" || type == "qwen3_moe" || type == "olmoe" || type == "gpt_oss";
}

bool is_deepseek(const std::string& type) { return type == "deepseek_v2" || type == "deepseek_v3"; }

// Layers whose MLP is dense in a model with experts.
std::vector<bool> dense_layers(const Fields& config, const std::string& type, int64_t layers) {
  std::vector<bool> dense(static_cast<size_t>(layers), false);
  if (type == "glm4_moe" || is_deepseek(type)) {
    const int64_t usual = type == "deepseek_v3" ? 3 : type == "deepseek_v2" ? 0 : 1;
    const int64_t first = config.count("first_k_dense_replace", usual);
    std::fill_n(dense.begin(), std::min(first, layers), true);
  }
  if (type != "qwen3_moe") return dense;
  const int64_t step = config.whole("decoder_sparse_step", 1);
  for (int64_t i = 0; i < layers; ++i) {
    if ((i + 1) % step != 0) dense[static_cast<size_t>(i)] = true;
  }
  if (!config.has("mlp_only_layers")) return dense;
  const Json& list = config.at("mlp_only_layers");
  if (!list.is_array()) {
    throw config.error("mlp_only_layers", "expected a list of layers, got " + shown(list));
  }
  for (const Json& layer : list) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= static_cast<uint64_t>(layers)) {
      throw config.error("mlp_only_layers", fmt::format("expected layers from 0 to {}, got {}",
                                                        layers - 1, shown(layer)));
    }
    dense[layer.get<size_t>()] = true;
  }
  return dense;
}

// The window of layers that have one; 0: none have.
int64_t window_of(const Fields& config, const std::string& type) {
  // Absent and null differ: an absent one has the default.
  const auto window = [&](int64_t usual) {
    if (config.has_key("sliding_window") && !config.has("sliding_window")) return int64_t{0};
    return config.has("sliding_window") ? config.whole("sliding_window") : usual;
  };
  if (type == "mistral") return window(4096);
  if (type == "gemma3_text") return window(4096);
  if (type == "gpt_oss") return window(128);
  if (type == "phi3" || type == "mixtral") return window(0);
  // SmolLM3 takes the layers' list by itself.
  const bool listed = type == "smollm3" && config.has("layer_types");
  const bool used = listed || config.flag("use_sliding_window", false);
  return used ? window(type == "smollm3" ? 0 : 4096) : 0;
}

// Whether a layer has the window where no list says it.
bool is_windowed(const Fields& config, const std::string& type, int64_t layer, bool rotates) {
  if (type == "gemma3_text") return (layer + 1) % config.whole("sliding_window_pattern", 6) != 0;
  if (type == "gpt_oss") return layer % 2 == 0;
  if (type == "qwen2" || type == "qwen3") return layer >= config.count("max_window_layers", 28);
  if (type == "smollm3") return !rotates;
  return true;
}

std::vector<bool> windowed_layers(const Fields& config, const std::string& type,
                                  const std::vector<bool>& rotates) {
  std::vector<bool> windowed;
  const auto layers = static_cast<int64_t>(rotates.size());
  if (!config.has("layer_types") || type == "mistral" || type == "mixtral" || type == "phi3") {
    for (int64_t i = 0; i < layers; ++i) {
      windowed.push_back(is_windowed(config, type, i, rotates[static_cast<size_t>(i)]));
    }
    return windowed;
  }
  const Json& types = config.at("layer_types");
  if (!types.is_array() || types.size() != rotates.size()) {
    throw config.error("layer_types",
                       fmt::format("expected a list of {} layers, got {}", layers, shown(types)));
  }
  for (const Json& layer : types) {
    if (layer != "full_attention" && layer != "sliding_attention") {
      throw config.error(
          "layer_types",
          "expected \"full_attention\" or \"sliding_attention\", got " + shown(layer));
    }
    windowed.push_back(layer == "sliding_attention");
  }
  return windowed;
}

// By layer: whether it rotates q and k.
std::vector<bool> rotating_layers(const Fields& config, const std::string& type, int64_t layers) {
  std::vector<bool> rotates(static_cast<size_t>(layers), true);
  if (type != "smollm3") return rotates;
  if (!config.has("no_rope_layers")) {
    const int64_t interval = config.whole("no_rope_layer_interval", 4);
    for (int64_t i = 0; i < layers; ++i) rotates[static_cast<size_t>(i)] = (i + 1) % interval != 0;
    return rotates;
  }
  // The list says of each layer whether it has RoPE, in spite of its name.
  const Json& list = config.at("no_rope_layers");
  if (!list.is_array() || list.size() != rotates.size()) {
    throw config.error("no_rope_layers",
                       fmt::format("expected a list of {} layers, got {}", layers, shown(list)));
  }
  for (size_t i = 0; i < rotates.size(); ++i) rotates[i] = list[i] == 1 || list[i] == true;
  return rotates;
}

// RoPE turns a part of each head, whose width is one of its own.
void read_latent(const Fields& config, ModelSpec& model) {
  LatentAttention latent;
  latent.query_rank = config.has_key("q_lora_rank") ? config.count("q_lora_rank", 0) : 1536;
  latent.key_rank = config.whole("kv_lora_rank", 512);
  latent.rotated_dim = config.whole("qk_rope_head_dim", 64);
  latent.value_dim = config.whole("v_head_dim", 128);
  model.head_dim = config.whole("qk_nope_head_dim", 128) + latent.rotated_dim;
  model.kv_heads = model.heads;
  model.latent = latent;
}

}  // namespace

void refuse_foreign_experts(const Fields& config, const std::string& model_type) {
  if (expert_fields(model_type) != nullptr) return;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (!config.has(key)) continue;
    throw config.error(key, fmt::format("{} is a dense model; expected no experts", model_type));
  }
}

void read_experts(const Fields& config, const std::string& model_type, ModelSpec& model) {
  const ExpertFields* fields = expert_fields(model_type);
  if (fields == nullptr) return;
  Experts e;
  e.count = count_of(config, *fields);
  e.active = config.whole("num_experts_per_tok", fields->usual_active);
  e.ffn = config.whole(fields->ffn);
  e.scores = fields->scores;
  e.format = fields->format;
  e.normalised = fields->normalised;
  if (*fields->normalised_key != '\0') {
    e.normalised = config.flag(fields->normalised_key, fields->normalised);
  }
  if (config.flag("output_router_logits", false) && takes_auxiliary_loss(model_type)) {
    e.auxiliary_loss = config.real("router_aux_loss_coef", model_type == "olmoe" ? 0.01 : 0.001);
  }
  if (config.has("clip_qkv")) {
    throw config.error("clip_qkv", "clipped q, k and v are not supported; expected null");
  }
  if (config.has("router_jitter_noise") && config.at("router_jitter_noise") != 0) {
    throw config.error("router_jitter_noise", "noise is not supported; expected 0");
  }
  if (model_type == "gpt_oss") {
    e.router_bias = true;
    model.mlp_bias = true;
    model.attention_sinks = true;
    model.activation = Activation::clamped_swiglu;
    if (config.real("swiglu_limit", 7) != 7 || config.real("swiglu_alpha", 1.702) != 1.702) {
      throw config.error("swiglu_limit", "expected 7, with a swiglu_alpha of 1.702");
    }
  }
  if (is_deepseek(model_type)) read_latent(config, model);
  if (model_type == "glm4_moe" || is_deepseek(model_type)) {
    e.selection_bias = model_type != "deepseek_v2";
    e.shared_ffn = checked_mul(config.count("n_shared_experts", 1), e.ffn, "n_shared_experts");
    e.scale = config.real("routed_scaling_factor", 1);
    e.groups = config.whole("n_group", 1);
    e.active_groups = config.whole("topk_group", 1);
  }
  model.experts = e;
}

void read_layers(const Fields& config, const std::string& model_type, ModelSpec& model) {
  const std::vector<bool> dense = dense_layers(config, model_type, model.layers);
  const std::vector<bool> rotates = rotating_layers(config, model_type, model.layers);
  const std::vector<bool> windowed = windowed_layers(config, model_type, rotates);
  const int64_t window = window_of(config, model_type);
  std::vector<LayerRun> runs;
  for (size_t i = 0; i < dense.size(); ++i) {
    LayerRun run{1, true, model.ffn};
    run.window = windowed[i] ? window : 0;
    run.experts = model.experts && !dense[i];
    if (windowed[i] && model.local_rope_theta != 0) run.positions = LayerPositions::local;
    if (!rotates[i]) run.positions = LayerPositions::none;
    if (!runs.empty() && runs.back().like(run)) {
      ++runs.back().layers;
    } else {
      runs.push_back(run);
    }
  }
  const LayerRun& first = runs.front();
  const bool as_model =
      first.positions == LayerPositions::model && first.experts == model.experts.has_value();
  if (runs.size() == 1 && as_model) {
    model.window = first.window;
  } else {
    model.runs = runs;
  }
}

}  // namespace longspan::hf
