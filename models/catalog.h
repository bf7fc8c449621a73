// Where models come from: the built-in catalog, a YAML file, or a Hugging Face config.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "models/model_spec.h"

namespace longspan {

/// Names of the built-in models, sorted.
std::vector<std::string> model_names();

/// `reference` is a catalog name, a YAML file of ours, a Hugging Face config.json, or the folder
/// that holds one. A catalog name may be written as is_same_name() takes it, and as the model's
/// repository on the Hugging Face hub is called (meta-llama/Llama-3.1-8B). Throws bad_input:
/// unknown names list the nearest ones, files say what is wrong and where, architectures that
/// cannot be trained are refused by name (MoE, sliding window, ...).
ModelSpec load_model(const std::string& reference);

/// The YAML form, as in the catalog and inside plans.
ModelSpec read_model(const YamlMap& yaml);
void write_model(YAML::Emitter& out, const ModelSpec& model);

/// A Hugging Face config.json as it is. `origin` names it in messages.
ModelSpec read_hf_config(const std::string& json_text, const std::string& origin);

/// The config.json that Hugging Face tools need with weights of this model.
std::string write_hf_config(const ModelSpec& model);

}  // namespace longspan
