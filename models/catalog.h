// Loads and writes models: from the built-in catalog, a YAML file, or a Hugging Face config.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "models/model_spec.h"

namespace longspan {

/// Names of the built-in models, sorted.
std::vector<std::string> model_names();

/// Loads a model. `reference` is a catalog name, a Longspan YAML file, a Hugging Face config.json,
/// or the folder that holds one. A catalog name may be written in any way that is_same_name()
/// accepts, or as the model's repository on the Hugging Face hub (meta-llama/Llama-3.1-8B). Throws
/// bad_input: unknown names list the nearest ones, errors in files have their place, architectures
/// that cannot be trained are refused by name (MoE, sliding window, ...).
ModelSpec load_model(const std::string& reference);

/// The repository of a model of the catalog on the Hugging Face hub; another name is returned
/// unchanged.
std::string hub_name(const std::string& name);

/// The YAML form, as in the catalog and in plans.
ModelSpec read_model(const YamlMap& yaml);
void write_model(YAML::Emitter& out, const ModelSpec& model);

/// Reads a Hugging Face config.json. `origin` names it in messages.
ModelSpec read_hf_config(const std::string& json_text, const std::string& origin);

/// Throws bad_input if the Hugging Face config.json `file` describes another model than `model`, by
/// each key that does: not by names, nor by positions that RoPE does not limit. Also throws as
/// read_hf_config() does, and for a model that is only planned.
void check_hf_config(const std::filesystem::path& file, const ModelSpec& model);

/// The config.json for Hugging Face tools that load weights of this model.
std::string write_hf_config(const ModelSpec& model);

}  // namespace longspan
