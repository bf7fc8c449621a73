// A Hugging Face config.json against a ModelSpec.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "models/catalog.h"

namespace longspan {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Keys of write_hf_config() that say nothing of their own about what the model computes.
bool is_silent(const std::string& key, const ModelSpec& model) {
  if (key == "max_position_embeddings") return model.positions == Positions::rope;
  return key == "_name_or_path" || key == "model_type" || key == "n_ctx";
}

// What `config` says otherwise than `model`, by key; empty: nothing. A file may spell a model in
// more than one way, so both are compared as write_hf_config() spells them.
std::string contradictions(const ModelSpec& config, const ModelSpec& model) {
  const OrderedJson ours = OrderedJson::parse(write_hf_config(model));
  const OrderedJson theirs = OrderedJson::parse(write_hf_config(config));
  std::string text;
  const auto add = [&](const std::string& key, const std::string& is, const std::string& expected) {
    text += (text.empty() ? "" : "; ") + fmt::format("{} is {}, not {}", key, is, expected);
  };
  // In one architecture an absent key says something, too.
  const bool alike = theirs["architectures"] == ours["architectures"];
  for (const auto& [key, value] : theirs.items()) {
    if (is_silent(key, model) || (!ours.contains(key) && !alike)) continue;
    if (!ours.contains(key)) {
      add(key, value.dump(), "absent");
    } else if (value != ours[key]) {
      add(key, value.dump(), ours[key].dump());
    }
  }
  for (const auto& [key, value] : ours.items()) {
    if (alike && !is_silent(key, model) && !theirs.contains(key)) add(key, "absent", value.dump());
  }
  return text;
}

}  // namespace

void check_hf_config(const std::filesystem::path& file, const ModelSpec& model) {
  const ModelSpec config = read_hf_config(read_file(file, kMostYamlBytes), file.string());
  if (!config.only_planned.empty()) {
    throw bad_input("{}: {}: the engine does not train such weights", file.string(),
                    config.only_planned);
  }
  std::string found;
  try {
    found = contradictions(config, model);
  } catch (const Error& e) {  // no config describes `model`
    found = e.what();
  }
  if (found.empty()) return;
  throw bad_input("{}: {}: expected the plan's model {}; make a plan for this one, with --model {}",
                  file.string(), found, model.name, file.string());
}

}  // namespace longspan
