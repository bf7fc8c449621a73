// Hugging Face config.json -> ModelSpec. A missing field has the default of the Transformers
// library for that architecture. Features that change neither memory nor time are left out of the
// plan (ModelSpec::only_planned); others that cannot be trained are refused by name.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "models/catalog.h"
#include "models/model_kind.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

std::string shown(const Json& value) {
  // Nested values are not printed: a hostile file can nest them deeper than the stack.
  if (value.is_object()) return "an object";
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

// Typed access to one JSON object. A null counts as absent, as in Transformers.
class Fields {
 public:
  Fields(const Json& json, std::string origin, std::string path = "")
      : json_(json), origin_(std::move(origin)), path_(std::move(path)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  bool has_key(const char* key) const { return json_.contains(key); }
  const Json& at(const char* key) const {
    if (!has(key)) throw bad_input("{}: {}{}: missing", origin_, path_, key);
    return json_[key];
  }
  Error error(const char* key, const std::string& what) const {
    return bad_input("{}: {}{}: {}", origin_, path_, key, what);
  }
  int64_t whole(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX} ||
        value.get<uint64_t>() == 0) {
      throw error(key, "expected a whole number > 0, got " + shown(value));
    }
    return value.get<int64_t>();
  }
  int64_t whole(const char* key, int64_t otherwise) const {
    return has(key) ? whole(key) : otherwise;
  }
  double real(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number() || !(value.get<double>() > 0)) {
      throw error(key, "expected a number > 0, got " + shown(value));
    }
    return value.get<double>();
  }
  double real(const char* key, double otherwise) const { return has(key) ? real(key) : otherwise; }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_[key].is_boolean()) {
      throw error(key, "expected true or false, got " + shown(json_[key]));
    }
    return json_[key].get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_[key].is_string()) throw error(key, "expected text, got " + shown(json_[key]));
    return json_[key].get<std::string>();
  }
  /// The fields of an object; none if it is absent.
  Fields object(const char* key) const {
    static const Json kNone = Json::object();
    const Json& value = has(key) ? json_[key] : kNone;
    if (!value.is_object()) throw error(key, "expected an object, got " + shown(value));
    return {value, origin_, path_ + key + "."};
  }
  bool empty() const { return json_.empty(); }

  /// Whether a setting of two spellings has the first, here, or the second, in `other`. Throws if
  /// it has both and they differ: versions of Transformers do not agree on which counts.
  bool is_first(const char* key, const Fields& other, const char* other_key) const {
    if (!has(key) || !other.has(other_key)) return !other.has(other_key);
    if (at(key) == other.at(other_key)) return true;
    throw error(key,
                fmt::format("{} contradicts {}{}: {}; expected one of them, or the same in both",
                            shown(at(key)), other.path_, other_key, shown(other.at(other_key))));
  }

 private:
  const Json& json_;
  std::string origin_;
  std::string path_;
};

// The defaults of a Llama-like architecture for absent fields.
struct Family {
  const char* architecture;
  const char* model_type;
  int64_t kv_heads;  // 0: as many as heads
  int64_t head_dim;  // 0: hidden / heads
  bool attention_bias_field;
  bool qkv_bias;
  bool qk_norm;
  bool gpt2 = false;
  const char* differs = "";  // difference from the planned model; empty: the engine trains it
};

constexpr std::array<Family, 8> kFamilies{{
    {"LlamaForCausalLM", "llama", 0, 0, true, false, false},
    {"MistralForCausalLM", "mistral", 8, 0, false, false, false},
    {"Qwen2ForCausalLM", "qwen2", 32, 0, false, true, false},
    {"Qwen3ForCausalLM", "qwen3", 32, 128, true, false, true},
    {"GPT2LMHeadModel", "gpt2", 0, 0, false, true, false, true},
    {"Phi3ForCausalLM", "phi3", 0, 0, false, false, false, false,
     "Phi-3 stores q, k and v, and gate and up, as one matrix each"},
    {"Olmo2ForCausalLM", "olmo2", 0, 0, true, false, true, false,
     "OLMo-2 normalises the outputs of attention and MLP, and q and k over all heads at once"},
    {"SmolLM3ForCausalLM", "smollm3", 4, 0, true, false, false, false,
     "SmolLM3 does not rotate q and k in every fourth layer"},
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
void refuse_foreign_features(const Fields& config) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (config.has(key)) {
      throw config.error(key,
                         "a mixture of experts (MoE) is not supported; expected a dense model");
    }
  }
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
  if (config.has("quantization_config")) {
    throw config.error("quantization_config",
                       "quantised weights are not supported; use the unquantised model");
  }
}

// A window at least as long as any sequence of the model changes nothing.
bool is_whole_window(const Fields& config) {
  return config.has("sliding_window") &&
         config.whole("sliding_window") >= config.whole("max_position_embeddings");
}

void refuse_sliding_window(const Fields& config, const Family& family) {
  const std::string type = family.model_type;
  if (type == "mistral" && !config.has_key("sliding_window")) {
    throw config.error("sliding_window",
                       "missing, which means a window of 4096 for MistralForCausalLM; sliding "
                       "window attention is not supported, set it to null for full attention");
  }
  const bool used = type == "mistral" || type == "phi3" ? config.has("sliding_window")
                                                        : config.flag("use_sliding_window", false);
  const bool whole = is_whole_window(config);
  if (used && !whole) {
    const char* key = type == "mistral" || type == "phi3" ? "sliding_window" : "use_sliding_window";
    throw config.error(key,
                       "sliding window attention is not supported; expected full attention, "
                       "got " +
                           shown(config.at(key)));
  }
  if (!config.has("layer_types")) return;
  const Json& types = config.at("layer_types");
  if (!types.is_array()) throw config.error("layer_types", "expected a list, got " + shown(types));
  for (const Json& layer : types) {
    if (layer != "full_attention" && !(whole && layer == "sliding_attention")) {
      throw config.error("layer_types",
                         "expected \"full_attention\" in every layer, got " + shown(layer));
    }
  }
}

// The positions that the model was trained with before its RoPE was scaled.
int64_t original_positions(const Fields& config, const Fields& scaling) {
  const char* key = "original_max_position_embeddings";
  if (!scaling.is_first(key, config, key)) return config.whole(key);
  return scaling.has(key) ? scaling.whole(key) : config.whole("max_position_embeddings");
}

void read_yarn(const Fields& config, const Fields& scaling, ModelSpec& model) {
  if (scaling.has("mscale") || scaling.has("mscale_all_dim") || !scaling.flag("truncate", true)) {
    return differs(model, "its RoPE angles are scaled by yarn in DeepSeek's or gpt-oss's form");
  }
  RopeScaling yarn{RopeType::yarn, scaling.real("factor")};
  yarn.original_max_positions = original_positions(config, scaling);
  yarn.beta_slow = scaling.real("beta_slow", yarn.beta_slow);
  yarn.beta_fast = scaling.real("beta_fast", yarn.beta_fast);
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
void read_rope(const Fields& config, const Fields& rope, ModelSpec& model) {
  for (const char* key : {"full_attention", "sliding_attention"}) {
    if (rope.has(key)) throw rope.error(key, "RoPE that differs between layers is not supported");
  }
  const auto place = [&](const char* key) -> const Fields& {
    return rope.is_first(key, config, key) ? rope : config;
  };
  model.rope_theta = place("rope_theta").real("rope_theta", 10000);
  // Some models rotate a part of each head.
  const char* share_key = "partial_rotary_factor";
  if (const double share = place(share_key).real(share_key, 1); share != 1) {
    differs(model, fmt::format("it rotates {:.0f} % of each head", 100 * share));
  }
  read_rope_scaling(config, rope, model);
}

// rope_scaling of older files and rope_parameters of newer ones have the same fields.
void read_rope(const Fields& config, ModelSpec& model) {
  const Fields older = config.object("rope_scaling"), newer = config.object("rope_parameters");
  ModelSpec other = model;
  read_rope(config, newer.empty() ? older : newer, model);
  if (newer.empty() || older.empty()) return;
  read_rope(config, older, other);
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

void read_llama_like(const Fields& config, const Family& family, ModelSpec& model) {
  if (*family.differs != '\0') differs(model, family.differs);
  refuse_sliding_window(config, family);
  model.layers = config.whole("num_hidden_layers");
  model.hidden = config.whole("hidden_size");
  model.heads = config.whole("num_attention_heads");
  model.ffn = config.whole("intermediate_size");
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
  const std::string activation = config.text("hidden_act", "silu");
  if (contains_any(activation, {"gelu", "relu"})) {
    differs(model, fmt::format("its activation is {}, not silu", activation.substr(0, 60)));
  } else if (activation != "silu" && activation != "swish") {
    throw config.error("hidden_act", "expected silu, gelu, relu or relu2, got \"" +
                                         activation.substr(0, 60) + "\"");
  }
  if (config.flag("mlp_bias", false)) {
    throw config.error("mlp_bias", "biases in a SwiGLU MLP are not supported; expected false");
  }
  model.norm_eps = config.real("rms_norm_eps", 1e-6);
  const bool bias = family.attention_bias_field && config.flag("attention_bias", false);
  model.qkv_bias = family.qkv_bias || bias;
  model.attention_out_bias = bias;
  model.qk_norm = family.qk_norm;
  model.tied_embeddings = config.flag("tie_word_embeddings", false);
  read_rope(config, model);
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
  const Fields config(json, origin);
  const Family& family = family_of(config);
  refuse_foreign_features(config);
  ModelSpec model;
  model.name = config.text("_name_or_path", "");
  if (model.name.empty()) model.name = family.model_type;
  if (family.gpt2) {
    read_gpt2(config, model);
  } else {
    read_llama_like(config, family, model);
  }
  validate(model, origin);
  return model;
}

}  // namespace longspan
