#include "models/hf_multimodal.h"

namespace longspan::hf {

bool is_multimodal(const Json& config) {
  if (config.contains("architectures")) {
    return config["architectures"] == Json{"Gemma3ForConditionalGeneration"};
  }
  return config.contains("model_type") && config["model_type"] == "gemma3";
}

Json text_model_of(const Json& config, const std::string& origin) {
  const Fields fields(config, origin);
  const std::string type = fields.text("model_type", "gemma3");
  if (type != "gemma3") throw fields.error("model_type", "expected gemma3, got \"" + type + "\"");
  if (!fields.has("text_config") || !fields.at("text_config").is_object()) {
    throw fields.error("text_config", "expected an object with the fields of the text model");
  }
  // Gemma3TextConfig of Transformers 5.24.
  Json text = {{"vocab_size", 262208U},
               {"hidden_size", 2304U},
               {"intermediate_size", 9216U},
               {"num_hidden_layers", 26U},
               {"num_attention_heads", 8U},
               {"num_key_value_heads", 4U},
               {"max_position_embeddings", 131072U}};
  text.update(fields.at("text_config"));
  text["architectures"] = {"Gemma3ForCausalLM"};
  const char* name = "_name_or_path";
  if (!text.contains(name) && config.contains(name)) text[name] = config[name];
  return text;
}

}  // namespace longspan::hf
