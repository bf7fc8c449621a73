// ModelSpec -> Hugging Face config.json, in the family that computes exactly this model.
#include <nlohmann/json.hpp>

#include "models/catalog.h"

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

// Qwen3 is Llama with q/k norms, Qwen2 is Llama with biases on q, k and v only. Mistral without a
// sliding window is Llama, and is written as Llama.
const char* llama_family(const ModelSpec& model) {
  const bool all_or_none = model.qkv_bias == model.attention_out_bias;
  if (model.qk_norm) return all_or_none ? "qwen3" : nullptr;
  if (all_or_none) return "llama";
  return model.qkv_bias ? "qwen2" : nullptr;
}

OrderedJson llama_config(const ModelSpec& model, const std::string& family) {
  const char* architecture = family == "qwen3"   ? "Qwen3ForCausalLM"
                             : family == "qwen2" ? "Qwen2ForCausalLM"
                                                 : "LlamaForCausalLM";
  OrderedJson config{{"architectures", {architecture}},
                     {"model_type", family},
                     {"_name_or_path", model.name},
                     {"num_hidden_layers", model.layers},
                     {"hidden_size", model.hidden},
                     {"num_attention_heads", model.heads},
                     {"num_key_value_heads", model.kv_heads},
                     {"head_dim", model.head_dim},
                     {"intermediate_size", model.ffn},
                     {"vocab_size", model.vocab},
                     {"max_position_embeddings", model.max_positions},
                     {"hidden_act", "silu"},
                     {"rms_norm_eps", model.norm_eps},
                     {"rope_theta", model.rope_theta},
                     {"rope_scaling", nullptr},
                     {"attention_dropout", 0.0},
                     {"tie_word_embeddings", model.tied_embeddings}};
  if (family != "qwen2") config["attention_bias"] = model.qkv_bias;
  if (family == "llama") config["mlp_bias"] = false;
  if (family != "llama") config["use_sliding_window"] = false;
  if (model.rope_scaling) {
    const RopeScaling& scaling = *model.rope_scaling;
    OrderedJson written = {{"rope_type", name_of(scaling.type)}, {"factor", scaling.factor}};
    if (scaling.type == RopeType::llama3) {
      written["low_freq_factor"] = scaling.low_freq_factor;
      written["high_freq_factor"] = scaling.high_freq_factor;
    }
    if (scaling.type == RopeType::yarn) {
      written["beta_slow"] = scaling.beta_slow;
      written["beta_fast"] = scaling.beta_fast;
      written["attention_factor"] = scaling.attention_factor;
    }
    if (scaling.type != RopeType::linear) {
      written["original_max_position_embeddings"] = scaling.original_max_positions;
    }
    config["rope_scaling"] = written;
  }
  return config;
}

}  // namespace

std::string write_hf_config(const ModelSpec& model) {
  validate(model, "model " + model.name);
  if (is_gpt2(model)) return gpt2_config(model).dump(2) + "\n";
  const bool llama_like = model.positions == Positions::rope && model.norm == Norm::rmsnorm &&
                          model.activation == Activation::swiglu;
  const char* family = llama_like ? llama_family(model) : nullptr;
  if (family == nullptr) {
    throw bad_input(
        "model {}: no Hugging Face architecture we write has this mix of features; expected those "
        "of GPT-2 (learned positions, LayerNorm, GELU, all biases) or of Llama, Qwen2 or Qwen3",
        model.name);
  }
  return llama_config(model, family).dump(2) + "\n";
}

}  // namespace longspan
