// ModelSpec -> Hugging Face config.json, in the family that computes exactly this model.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "models/catalog.h"
#include "models/training.h"

namespace longspan {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_gpt2(const ModelSpec& model) {
  return model.positions == Positions::learned && model.norm == Norm::layernorm &&
         model.activation == Activation::gelu && !model.qk_norm && model.qkv_bias &&
         model.attention_out_bias && model.mlp_bias && model.kv_heads == model.heads &&
         model.attention_width() == model.hidden;
}

OrderedJson gpt2_config(const ModelSpec& model) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"_name_or_path", model.name},
          {"n_layer", model.layers},
          {"n_embd", model.hidden},
          {"n_head", model.heads},
          {"n_inner", model.ffn},
          {"vocab_size", model.vocab},
          {"n_positions", model.max_positions},
          {"n_ctx", model.max_positions},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", model.norm_eps},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"tie_word_embeddings", model.tied_embeddings}};
}

// A family of configs with the fields of Llama.
struct WrittenFamily {
  const char* architecture;
  const char* model_type;
};

// A model that several describe is written as the first.
constexpr WrittenFamily kWrittenFamilies[] = {
    {"LlamaForCausalLM", "llama"},
    {"Qwen2ForCausalLM", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3"},
    {"MistralForCausalLM", "mistral"},
    {"Phi3ForCausalLM", "phi3"},
    {"SmolLM3ForCausalLM", "smollm3"},
    {"Olmo2ForCausalLM", "olmo2"},
    {"Gemma3ForCausalLM", "gemma3_text"},
    {"MixtralForCausalLM", "mixtral"},
    {"Qwen3MoeForCausalLM", "qwen3_moe"},
    {"OlmoeForCausalLM", "olmoe"},
    {"GptOssForCausalLM", "gpt_oss"},
    {"Glm4MoeForCausalLM", "glm4_moe"},
    {"DeepseekV3ForCausalLM", "deepseek_v3"},
    {"DeepseekV2ForCausalLM", "deepseek_v2"},
};

OrderedJson rope_scaling(const RopeScaling& scaling) {
  OrderedJson written = {{"rope_type", name_of(scaling.type)}, {"factor", scaling.factor}};
  if (scaling.type == RopeType::llama3) {
    written["low_freq_factor"] = scaling.low_freq_factor;
    written["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (scaling.type == RopeType::yarn) {
    written["beta_slow"] = scaling.beta_slow;
    written["beta_fast"] = scaling.beta_fast;
    written["attention_factor"] = scaling.attention_factor;
    if (!scaling.truncates) written["truncate"] = false;
  }
  if (scaling.type != RopeType::linear) {
    written["original_max_position_embeddings"] = scaling.original_max_positions;
  }
  return written;
}

// The window of the model's layers; 0 if none have one.
int64_t window_of(const ModelSpec& model) {
  int64_t window = 0;
  for (const LayerRun& run : layer_runs(model)) window = std::max(window, run.window);
  return window;
}

// The layers with a window, where a family lists them.
void write_layers(OrderedJson& config, const ModelSpec& model) {
  OrderedJson types = OrderedJson::array();
  for (const LayerRun& run : layer_runs(model)) {
    for (int64_t i = 0; i < run.layers; ++i) {
      types.push_back(run.window > 0 ? "sliding_attention" : "full_attention");
    }
  }
  config["layer_types"] = types;
}

// The layers that rotate q and k, under a name that says the opposite.
void write_rotating_layers(OrderedJson& config, const ModelSpec& model) {
  OrderedJson rotate = OrderedJson::array();
  for (const LayerRun& run : layer_runs(model)) {
    for (int64_t i = 0; i < run.layers; ++i) {
      rotate.push_back(run.positions == LayerPositions::none ? 0 : 1);
    }
  }
  config["no_rope_layers"] = rotate;
}

void write_window(OrderedJson& config, const ModelSpec& model, const std::string& type) {
  const int64_t window = window_of(model);
  if (type == "mistral" || type == "phi3" || type == "mixtral") {
    config["sliding_window"] = window > 0 ? OrderedJson(window) : OrderedJson(nullptr);
    return;
  }
  const bool always = type == "gemma3_text" || type == "gpt_oss";
  if (type == "qwen2" || type == "qwen3" || type == "smollm3") {
    config["use_sliding_window"] = window > 0;
  }
  if (window == 0 && !always) return;
  if (window > 0) config["sliding_window"] = window;
  write_layers(config, model);
}

void write_experts(OrderedJson& config, const ModelSpec& model, const std::string& type) {
  const Experts& e = *model.experts;
  config["num_experts_per_tok"] = e.active;
  if (e.auxiliary_loss > 0) {
    config["output_router_logits"] = true;
    config["router_aux_loss_coef"] = e.auxiliary_loss;
  }
  const bool deepseek = type == "deepseek_v2" || type == "deepseek_v3";
  const bool shared = type == "glm4_moe" || deepseek;
  const bool own_width = type == "qwen3_moe" || shared;
  config[own_width ? "moe_intermediate_size" : "intermediate_size"] = e.ffn;
  config[type == "qwen3_moe" || type == "olmoe" ? "num_experts"
         : shared                               ? "n_routed_experts"
                                                : "num_local_experts"] = e.count;
  if (type == "qwen3_moe" || type == "olmoe" || shared) {
    config["norm_topk_prob"] = e.normalised;
  }
  OrderedJson dense = OrderedJson::array();
  int64_t layer = 0;
  for (const LayerRun& run : layer_runs(model)) {
    for (int64_t i = 0; i < run.layers; ++i, ++layer) {
      if (!run.experts) dense.push_back(layer);
    }
  }
  if (type == "qwen3_moe") config["mlp_only_layers"] = dense;
  if (!shared) return;
  config["first_k_dense_replace"] = dense.size();
  config["n_shared_experts"] = e.shared_ffn / e.ffn;
  config["routed_scaling_factor"] = e.scale;
  config["n_group"] = e.groups;
  config["topk_group"] = e.active_groups;
  if (!deepseek) config["use_qk_norm"] = model.qk_norm;
}

void write_latent(OrderedJson& config, const ModelSpec& model) {
  const LatentAttention& latent = *model.latent;
  config.erase("head_dim");
  config["q_lora_rank"] = latent.query_rank > 0 ? OrderedJson(latent.query_rank) : OrderedJson();
  config["kv_lora_rank"] = latent.key_rank;
  config["qk_nope_head_dim"] = model.head_dim - latent.rotated_dim;
  config["qk_rope_head_dim"] = latent.rotated_dim;
  config["v_head_dim"] = latent.value_dim;
}

OrderedJson llama_config(const ModelSpec& model, const WrittenFamily& family) {
  const std::string type = family.model_type;
  const bool gemma = type == "gemma3_text";
  OrderedJson config{{"architectures", {family.architecture}},
                     {"model_type", type},
                     {"_name_or_path", model.name},
                     {"num_hidden_layers", model.layers},
                     {"hidden_size", model.hidden},
                     {"num_attention_heads", model.heads},
                     {"num_key_value_heads", model.kv_heads},
                     {"head_dim", model.head_dim},
                     {"intermediate_size", model.ffn},
                     {"vocab_size", model.vocab},
                     {"max_position_embeddings", model.max_positions},
                     {gemma ? "hidden_activation" : "hidden_act",
                      model.activation == Activation::geglu ? "gelu_pytorch_tanh" : "silu"},
                     {"rms_norm_eps", model.norm_eps},
                     {"rope_theta", model.rope_theta},
                     {"rope_scaling", nullptr},
                     {"attention_dropout", 0.0},
                     {"tie_word_embeddings", model.tied_embeddings}};
  if (type != "qwen2") config["attention_bias"] = model.qkv_bias;
  if (type == "llama") config["mlp_bias"] = false;
  if (model.rope_scaling) config["rope_scaling"] = rope_scaling(*model.rope_scaling);
  if (model.rotary_share != 1) config["partial_rotary_factor"] = model.rotary_share;
  if (gemma) {
    config["rope_local_base_freq"] = model.local_rope_theta;
    config["query_pre_attn_scalar"] = std::round(1 / (model.score_scale() * model.score_scale()));
  }
  if (type == "smollm3") write_rotating_layers(config, model);
  if (model.experts) write_experts(config, model, type);
  if (model.latent) write_latent(config, model);
  write_window(config, model, type);
  return config;
}

// Whether a reader of this config gets the model.
bool describes(const OrderedJson& config, const ModelSpec& model) {
  try {
    ModelSpec read = read_hf_config(config.dump(), "");
    read.name = model.name;
    read.only_planned = model.only_planned;
    return read == model;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string write_hf_config(const ModelSpec& trained) {
  const ModelSpec model = wholly_trained(trained);  // a config does not say what is trained
  validate(model, "model " + model.name);
  if (is_gpt2(model)) return gpt2_config(model).dump(2) + "\n";
  for (const WrittenFamily& family : kWrittenFamilies) {
    const OrderedJson config = llama_config(model, family);
    if (describes(config, model)) return config.dump(2) + "\n";
  }
  throw bad_input(
      "model {}: no Hugging Face architecture we write has this mix of features; expected those "
      "of GPT-2 (learned positions, LayerNorm, GELU, all biases), of Llama, Qwen2 or Qwen3, or of "
      "a mixture of experts",
      model.name);
}

}  // namespace longspan
