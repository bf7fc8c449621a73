#include "engine/train/adapter_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "engine/train/states.h"
#include "engine/train/weight_files.h"
#include "models/adapters.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
// What peft puts before the names of a model's tensors.
constexpr const char* kPeftPrefix = "base_model.model.";

std::vector<ParameterUnit> adapter_units(const ModelSpec& model) {
  std::vector<ParameterUnit> units = parameter_units(model);
  std::erase_if(
      units, [](const ParameterUnit& unit) { return unit.kind != ParameterUnit::Kind::adapters; });
  return units;
}

std::set<std::string> names_of(const Adapters& adapters) {
  std::set<std::string> names;
  for (int i = 0; i < kProjections; ++i) {
    if (adapters.on[static_cast<size_t>(i)]) names.insert(name_of(static_cast<Projection>(i)));
  }
  return names;
}

json config_of(const ModelSpec& model) {
  const Adapters& adapters = *model.adapters;
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", model.name},
          {"r", adapters.rank},
          {"lora_alpha", adapters.alpha},
          {"lora_dropout", 0.0},
          {"target_modules", names_of(adapters)},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true}};
}

Error contradicts(const fs::path& path, const std::string& key, const std::string& found,
                  const std::string& expected) {
  return bad_input("adapters: {}: {} is {}, and the plan's model has {}", path.string(), key, found,
                   expected);
}

void check_config(const ModelSpec& model, const fs::path& path) {
  json config;
  try {
    config = json::parse(read_file(path));
    const Adapters& adapters = *model.adapters;
    const double rank = config.at("r").get<double>(), alpha = config.at("lora_alpha").get<double>();
    if (rank != static_cast<double>(adapters.rank)) {
      throw contradicts(path, "r", config["r"].dump(), std::to_string(adapters.rank));
    }
    if (alpha != adapters.alpha) {
      throw contradicts(path, "lora_alpha", config["lora_alpha"].dump(),
                        fmt::format("{}", adapters.alpha));
    }
    // A text is a pattern, and "all-linear" a set that depends on the model: the tensors tell.
    const json& targets = config.at("target_modules");
    if (targets.is_array()) {
      const auto found = targets.get<std::set<std::string>>();
      const std::set<std::string> own = names_of(adapters);
      if (found != own) {
        throw contradicts(path, "target_modules", fmt::format("{}", fmt::join(found, ", ")),
                          fmt::format("{}", fmt::join(own, ", ")));
      }
    }
  } catch (const json::exception& e) {
    throw bad_input("adapters: {}: {}", path.string(), e.what());
  }
  // Variants of LoRA, which compute other sums.
  for (const char* key : {"use_rslora", "use_dora", "lora_bias", "fan_in_fan_out"}) {
    if (!config.contains(key) || config[key] == false || config[key].is_null()) continue;
    throw bad_input("adapters: {}: {} is {}, which is not supported; expected false", path.string(),
                    key, config[key].dump());
  }
  for (const char* key : {"rank_pattern", "alpha_pattern", "layers_to_transform"}) {
    if (!config.contains(key) || config[key].empty()) continue;
    throw bad_input("adapters: {}: {} is given; expected the same adapters in all layers",
                    path.string(), key);
  }
}

}  // namespace

void check_adapters(const ModelSpec& model, const fs::path& folder) {
  if (!model.adapters) {
    throw bad_input("adapters: {}: the plan's model has none; make the plan with --lora",
                    folder.string());
  }
  for (const char* name : {kConfig, kTensors}) {
    if (!fs::exists(folder / name)) {
      throw bad_input("adapters: {}: holds no {}", folder.string(), name);
    }
  }
  check_config(model, folder / kConfig);
  WeightFiles(folder / kTensors).check_units(kPeftPrefix, adapter_units(model));
}

void load_adapters(Executor& executor, const ModelSpec& model, const fs::path& folder) {
  check_adapters(model, folder);
  const WeightFiles files(folder / kTensors);
  for (const ParameterUnit& unit : adapter_units(model)) {
    const int own = unit_of_program(executor.program(), unit);
    if (own < 0) continue;
    std::vector<float> values(static_cast<size_t>(unit.elements));
    for (const ParameterTensor& tensor : unit.tensors) {
      files.read(kPeftPrefix, tensor, values.data() + tensor.offset);
    }
    write_parameters(executor, own, values);
  }
}

void save_adapters(const Executor& executor, const ModelSpec& model, Communicator* comm,
                   const fs::path& folder) {
  const std::vector<ParameterUnit> units = adapter_units(model);
  std::vector<std::vector<float>> values;
  for (const ParameterUnit& unit : units) {
    values.push_back(read_parameters(executor, model, comm, unit));
  }
  if (comm != nullptr && comm->rank() != 0) return;
  fs::create_directories(folder);
  std::vector<SafetensorsTensor> tensors;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    for (const ParameterTensor& tensor : units[unit].tensors) {
      const float* from = values[unit].data() + tensor.offset;
      tensors.push_back({kPeftPrefix + tensor.name, tensor.shape,
                         [from, &tensor](float* out) { std::copy_n(from, tensor.elements, out); }});
    }
  }
  write_safetensors(folder / kTensors, tensors, {{"format", "pt"}});
  write_file_atomically(folder / kConfig, config_of(model).dump(2) + "\n");
}

}  // namespace longspan
