// Hugging Face config.json -> ModelSpec. A missing field has the default of the Transformers
// library for that architecture. Features that change neither memory nor time are left out of the
// plan (ModelSpec::only_planned); others that cannot be trained are refused by name.
#include <algorithm>
#include <array>
#include <cmath>

#include "models/catalog.h"
#include "models/hf_fields.h"
#include "models/hf_layers.h"
#include "models/hf_multimodal.h"
#include "models/model_kind.h"

namespace longspan {
namespace {

using hf::Fields, hf::Json, hf::shown;

// The form of a config: which fields it has besides those of Llama.
enum class Form { llama, gpt2, gemma3 };

// The defaults of an architecture for absent fields.
struct Family {
  const char* architecture;
  const char* model_type;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden / heads
  bool attention_bias_field = false;
  bool out_bias = true;  // attention_bias is also that of the output
  bool qkv_bias = false;
  bool qk_norm = false;
  Form form = Form::llama;
  double rope_theta = 10000;
  const char* activation_key = "hidden_act";
  double rotary_share = 1;
  double norm_eps = 1e-6;
  bool scaled_by_default = false;  // RoPE that the file does not describe has gpt-oss's yarn
};

constexpr std::array<Family, 16> kFamilies{{
    {.architecture = "LlamaForCausalLM", .model_type = "llama", .attention_bias_field = true},
    {.architecture = "MistralForCausalLM", .model_type = "mistral", .kv_heads = 8},
    {.architecture = "Qwen2ForCausalLM", .model_type = "qwen2", .kv_heads = 32, .qkv_bias = true},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .kv_heads = 32,
     .head_dim = 128,
     .attention_bias_field = true,
     .qk_norm = true},
    {.architecture = "GPT2LMHeadModel", .model_type = "gpt2", .qkv_bias = true, .form = Form::gpt2},
    {.architecture = "Phi3ForCausalLM", .model_type = "phi3", .norm_eps = 1e-5},
    {.architecture = "Olmo2ForCausalLM",
     .model_type = "olmo2",
     .attention_bias_field = true,
     .qk_norm = true,
     .norm_eps = 1e-5},
    {.architecture = "SmolLM3ForCausalLM",
     .model_type = "smollm3",
     .kv_heads = 4,
     .attention_bias_field = true,
     .rope_theta = 2e6},
    {.architecture = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .kv_heads = 4,
     .head_dim = 256,
     .attention_bias_field = true,
     .qk_norm = true,
     .form = Form::gemma3,
     .rope_theta = 1e6,
     .activation_key = "hidden_activation"},
    {.architecture = "MixtralForCausalLM",
     .model_type = "mixtral",
     .kv_heads = 8,
     .rope_theta = 1e6,
     .norm_eps = 1e-5},
    {.architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .kv_heads = 4,
     .attention_bias_field = true,
     .qk_norm = true},
    {.architecture = "OlmoeForCausalLM",
     .model_type = "olmoe",
     .attention_bias_field = true,
     .qk_norm = true,
     .norm_eps = 1e-5},
    {.architecture = "GptOssForCausalLM",
     .model_type = "gpt_oss",
     .kv_heads = 8,
     .head_dim = 64,
     .attention_bias_field = true,
     .rope_theta = 150000,
     .norm_eps = 1e-5,
     .scaled_by_default = true},
    {.architecture = "Glm4MoeForCausalLM",
     .model_type = "glm4_moe",
     .kv_heads = 8,
     .attention_bias_field = true,
     .out_bias = false,
     .rotary_share = 0.5,
     .norm_eps = 1e-5},
    {.architecture = "DeepseekV3ForCausalLM",
     .model_type = "deepseek_v3",
     .head_dim = 192,
     .attention_bias_field = true},
    {.architecture = "DeepseekV2ForCausalLM",
     .model_type = "deepseek_v2",
     .head_dim = 192,
     .attention_bias_field = true},
}};

// Records a difference of the real model that a plan does not consider.
void differs(ModelSpec& model, const std::string& how) {
  model.only_planned += (model.only_planned.empty() ? "" : "; ") + how;
}

bool contains_any(const std::string& text, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return text.find(part) != std::string::npos; });
}

// The name of the architecture: the `architectures` entry, or its substitute.
std::string architecture_of(const Fields& config) {
  if (config.has("architectures")) {
    const Json& list = config.at("architectures");
    if (!list.is_array() || list.size() != 1 || !list[0].is_string()) {
      throw config.error("architectures", "expected a list of one name, got " + shown(list));
    }
    return list[0].get<std::string>();
  }
  const std::string type = config.text("model_type", "");
  for (const Family& family : kFamilies) {
    if (type == family.model_type) return family.architecture;
  }
  if (type.empty()) throw config.error("architectures", "missing, and so is model_type");
  return type;
}

const Family& family_of(const Fields& config) {
  const std::string name = architecture_of(config);
  std::string known;
  for (const Family& family : kFamilies) {
    if (name == family.architecture) {
      const std::string type = config.text("model_type", family.model_type);
      if (type == family.model_type) return family;
      throw config.error("model_type",
                         fmt::format("expected {}, the type of {} in architectures, got \"{}\", by "
                                     "which Transformers goes; correct the one that is wrong",
                                     family.model_type, name, type.substr(0, 60)));
    }
    known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  throw config.error("architectures", fmt::format("{}{} is not supported; expected one of {}", name,
                                                  kind_by_name(name), known));
}

// Features that change the arithmetic of any family and that no field of ModelSpec describes.
void refuse_foreign_features(const Fields& config, const Family& family) {
  hf::refuse_foreign_experts(config, family.model_type);
  for (const char* key : {"is_encoder_decoder", "add_cross_attention"}) {
    if (config.flag(key, false)) {
      throw config.error(key, "an encoder-decoder is not supported; expected a decoder-only model");
    }
  }
  if (!config.flag("is_causal", true)) {
    throw config.error("is_causal",
                       "attention without a causal mask is not supported; expected true");
  }
  for (const char* key : {"text_config", "vision_config"}) {
    if (config.has(key)) throw config.error(key, "multimodal models are not supported");
  }
  // The published weights of DeepSeek-V3 have 8 bits; they are trained as those of 16.
  const bool stored = std::string(family.model_type).starts_with("deepseek");
  if (config.has("quantization_config") && !stored) {
    throw config.error("quantization_config",
                       "quantised weights are not supported; use the unquantised model");
  }
}

// The positions that the model was trained with before its RoPE was scaled.
int64_t original_positions(const Fields& config, const Fields& scaling) {
  const char* key = "original_max_position_embeddings";
  if (!scaling.is_first(key, config, key)) return config.whole(key);
  return scaling.has(key) ? scaling.whole(key) : config.whole("max_position_embeddings");
}

void read_yarn(const Fields& config, const Fields& scaling, ModelSpec& model) {
  if (scaling.has("mscale") || scaling.has("mscale_all_dim")) {
    return differs(model, "its RoPE angles are scaled by yarn in DeepSeek's form");
  }
  RopeScaling yarn{RopeType::yarn, scaling.real("factor")};
  yarn.original_max_positions = original_positions(config, scaling);
  yarn.beta_slow = scaling.real("beta_slow", yarn.beta_slow);
  yarn.beta_fast = scaling.real("beta_fast", yarn.beta_fast);
  // Null is no default here: Transformers takes it for false.
  yarn.truncates = scaling.has_key("truncate") ? scaling.flag("truncate", false) : true;
  yarn.attention_factor = scaling.real("attention_factor", yarn_attention_factor(yarn.factor));
  model.rope_scaling = yarn;
}

void read_rope_scaling(const Fields& config, const Fields& scaling, ModelSpec& model) {
  const char* type_key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.text(type_key, "default");
  if (type == "default") return;
  // They only change the angles, not the size of the table.
  for (const char* known : {"dynamic", "longrope", "su"}) {
    if (type == known) return differs(model, fmt::format("its RoPE angles are scaled by {}", type));
  }
  if (type == "linear") {
    model.rope_scaling = RopeScaling{RopeType::linear, scaling.real("factor")};
    return;
  }
  if (type == "yarn") return read_yarn(config, scaling, model);
  if (type != "llama3") {
    throw scaling.error(type_key,
                        "expected default, llama3, yarn, linear, dynamic or longrope, got \"" +
                            type.substr(0, 60) + "\"; this RoPE scaling is not supported");
  }
  model.rope_scaling =
      RopeScaling{RopeType::llama3, scaling.real("factor"), scaling.real("low_freq_factor"),
                  scaling.real("high_freq_factor"), original_positions(config, scaling)};
}

// RoPE by one of the objects that describe it; the base and the rotated share may be next to it.
void read_rope(const Fields& config, const Fields& rope, const Family& family, ModelSpec& model) {
  const auto place = [&](const char* key) -> const Fields& {
    return rope.is_first(key, config, key) ? rope : config;
  };
  model.rope_theta = place("rope_theta").real("rope_theta", family.rope_theta);
  const char* share_key = "partial_rotary_factor";
  model.rotary_share = place(share_key).real(share_key, family.rotary_share);
  const std::string type = family.model_type;
  const bool rotates_parts = type == "phi3" || type == "glm4_moe";  // Transformers does
  if (model.rotary_share != 1 && !rotates_parts) {
    differs(model, fmt::format("it rotates {:.0f} % of each head", 100 * model.rotary_share));
  }
  read_rope_scaling(config, rope, model);
}

// RoPE of layers with full attention in one object and of those with a window in another.
void read_rope_of_layers(const Fields& config, const Fields& rope, const Family& family,
                         ModelSpec& model) {
  const Fields full = rope.object("full_attention"), local = rope.object("sliding_attention");
  read_rope(config, full, family, model);
  if (local.text("rope_type", "default") != "default") {
    throw local.error("rope_type", "expected default: RoPE of layers with a window is not scaled");
  }
  const char* key = "rope_local_base_freq";
  model.local_rope_theta = local.is_first("rope_theta", config, key)
                               ? local.real("rope_theta", 10000)
                               : config.real(key);
}

// Gemma-3's spellings that Transformers reads otherwise than in other families: it ignores them.
void refuse_ignored_rope(const Fields& config, const Fields& older, const Fields& newer) {
  if (!newer.empty()) {
    throw newer.error("full_attention", "missing; expected the RoPE of each kind of layers");
  }
  if (older.has("type") && !older.has("rope_type")) {
    throw older.error("type", "expected rope_type, as Transformers ignores type here");
  }
  const char* original = "original_max_position_embeddings";
  if (config.has(original)) throw config.error(original, "expected it in rope_scaling");
}

// rope_scaling of older files and rope_parameters of newer ones have the same fields.
void read_rope(const Fields& config, const Family& family, ModelSpec& model) {
  const Fields older = config.object("rope_scaling"), newer = config.object("rope_parameters");
  const bool of_layers = newer.has("full_attention") || newer.has("sliding_attention");
  if (of_layers && family.form == Form::gemma3) {
    return read_rope_of_layers(config, newer, family, model);
  }
  for (const char* key : {"full_attention", "sliding_attention"}) {
    if (newer.has(key)) throw newer.error(key, "RoPE that differs between layers is not supported");
  }
  if (family.form == Form::gemma3) {
    refuse_ignored_rope(config, older, newer);
    model.local_rope_theta = config.real("rope_local_base_freq", 10000);
  }
  ModelSpec other = model;
  read_rope(config, newer.empty() ? older : newer, family, model);
  if (family.scaled_by_default && !config.has("rope_parameters") && older.empty()) {
    model.rope_scaling = RopeScaling{.type = RopeType::yarn,
                                     .factor = 32,
                                     .original_max_positions = 4096,
                                     .attention_factor = yarn_attention_factor(32),
                                     .truncates = false};
  }
  if (newer.empty() || older.empty()) return;
  read_rope(config, older, family, other);
  if (other == model) return;
  throw config.error("rope_scaling",
                     "contradicts rope_parameters, which older versions of Transformers do not "
                     "read; expected one of them, or the same RoPE in both");
}

int64_t default_head_dim(const Fields& config, const char* hidden_key, const ModelSpec& model) {
  if (model.hidden % model.heads != 0) {
    throw config.error(hidden_key, fmt::format("expected a multiple of the {} heads, got {}",
                                               model.heads, model.hidden));
  }
  return model.hidden / model.heads;
}

// The activation of a gated MLP.
void read_activation(const Fields& config, const Family& family, ModelSpec& model) {
  const char* key = family.activation_key;
  const bool gemma = family.form == Form::gemma3;
  const std::string activation = config.text(key, gemma ? "gelu_pytorch_tanh" : "silu");
  if (activation == "gelu_pytorch_tanh" || activation == "gelu_new") {
    model.activation = Activation::geglu;
  } else if (contains_any(activation, {"gelu", "relu"})) {
    differs(model, fmt::format("its activation is {}, not silu", activation.substr(0, 60)));
  } else if (activation != "silu" && activation != "swish") {
    throw config.error(
        key, "expected silu, gelu, relu or relu2, got \"" + activation.substr(0, 60) + "\"");
  }
}

void read_gemma3(const Fields& config, ModelSpec& model) {
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (config.has(key)) throw config.error(key, "capped logits are not supported; expected null");
  }
  if (config.flag("use_bidirectional_attention", false)) {
    throw config.error("use_bidirectional_attention", "not supported; expected false");
  }
  model.norm_placement = NormPlacement::both;
  model.norm_offset = true;
  model.embedding_scale = std::sqrt(static_cast<double>(model.hidden));
  model.attention_scale = 1 / std::sqrt(config.real("query_pre_attn_scalar", 256));
}

void read_llama_like(const Fields& config, const Family& family, ModelSpec& model) {
  model.layers = config.whole("num_hidden_layers");
  model.hidden = config.whole("hidden_size");
  model.heads = config.whole("num_attention_heads");
  model.ffn = config.whole("intermediate_size");
  model.norm_eps = config.real("rms_norm_eps", family.norm_eps);
  model.vocab = config.whole("vocab_size");
  model.max_positions = config.whole("max_position_embeddings");
  const bool missing = !config.has_key("num_key_value_heads") && family.kv_heads != 0;
  model.kv_heads = config.whole("num_key_value_heads", missing ? family.kv_heads : model.heads);
  if (family.head_dim != 0 && !config.has_key("head_dim")) {
    model.head_dim = family.head_dim;
  } else {
    model.head_dim = config.has("head_dim") ? config.whole("head_dim")
                                            : default_head_dim(config, "hidden_size", model);
  }
  read_activation(config, family, model);
  if (config.flag("mlp_bias", false)) {
    throw config.error("mlp_bias", "biases in a SwiGLU MLP are not supported; expected false");
  }
  const bool type_has_bias = std::string(family.model_type) == "gpt_oss";
  const bool bias = family.attention_bias_field && config.flag("attention_bias", type_has_bias);
  model.qkv_bias = family.qkv_bias || bias;
  model.attention_out_bias = bias && family.out_bias;
  model.qk_norm = family.qk_norm || config.flag("use_qk_norm", false);
  const std::string type = family.model_type;
  model.qk_norm_of_token = type == "olmo2" || type == "olmoe";
  if (type == "olmo2") model.norm_placement = NormPlacement::output;
  model.fused_projections = type == "phi3";
  model.tied_embeddings =
      config.flag("tie_word_embeddings", type == "smollm3" || type == "gemma3_text");
  if (family.form == Form::gemma3) read_gemma3(config, model);
  read_rope(config, family, model);
  hf::read_experts(config, type, model);
  hf::read_layers(config, type, model);
}

void read_gpt2(const Fields& config, ModelSpec& model) {
  model.norm = Norm::layernorm;
  model.activation = Activation::gelu;
  model.positions = Positions::learned;
  const auto size = [&](const char* key, const char* alias) {
    return config.whole(config.is_first(key, config, alias) ? key : alias);
  };
  model.layers = size("n_layer", "num_hidden_layers");
  model.hidden = size("n_embd", "hidden_size");
  model.heads = size("n_head", "num_attention_heads");
  model.kv_heads = model.heads;
  model.head_dim = default_head_dim(config, "n_embd", model);
  model.vocab = config.whole("vocab_size");
  model.max_positions = size("n_positions", "max_position_embeddings");
  if (!config.has("n_inner") && model.hidden > INT64_MAX / 4) {
    throw config.error("n_embd", fmt::format("too large: {}", model.hidden));
  }
  model.ffn = config.has("n_inner") ? config.whole("n_inner") : 4 * model.hidden;
  model.norm_eps = config.real("layer_norm_epsilon", 1e-5);
  const std::string activation = config.text("activation_function", "gelu_new");
  if (contains_any(activation, {"gelu", "relu"})) {
    if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
      differs(model, fmt::format("its activation is {}, not gelu_new", activation.substr(0, 60)));
    }
  } else {
    throw config.error("activation_function", "expected gelu_new, gelu, relu or relu2, got \"" +
                                                  activation.substr(0, 60) + "\"");
  }
  if (!config.flag("scale_attn_weights", true)) {
    throw config.error("scale_attn_weights", "expected true: attention is always scaled");
  }
  if (config.flag("scale_attn_by_inverse_layer_idx", false)) {
    throw config.error("scale_attn_by_inverse_layer_idx", "not supported; expected false");
  }
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = config.flag("tie_word_embeddings", true);
}

}  // namespace

ModelSpec read_hf_config(const std::string& json_text, const std::string& origin) {
  Json json;
  try {
    json = Json::parse(json_text);
  } catch (const Json::exception& e) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ...", kept on one line.
    std::string what = e.what();
    const size_t start = what.find("] ");
    if (start != std::string::npos) what = what.substr(start + 2);
    for (char& c : what) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    throw bad_input("{}: not valid JSON: {}", origin, what.substr(0, 200));
  }
  if (!json.is_object()) {
    throw bad_input("{}: expected a JSON object with the fields of a Hugging Face config", origin);
  }
  const bool multimodal = hf::is_multimodal(json);
  if (multimodal) json = hf::text_model_of(json, origin);
  const Fields config(json, origin, multimodal ? "text_config." : "");
  const Family& family = family_of(config);
  refuse_foreign_features(config, family);
  ModelSpec model;
  model.name = config.text("_name_or_path", "");
  if (model.name.empty()) model.name = family.model_type;
  if (family.form == Form::gpt2) {
    read_gpt2(config, model);
  } else {
    read_llama_like(config, family, model);
  }
  if (multimodal) differs(model, "its vision tower is left out");
  validate(model, origin);
  return model;
}

}  // namespace longspan
