#include "frameworks/write/write_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "frameworks/knobs/configured_model.h"
#include "frameworks/knobs/spelling.h"
#include "frameworks/read/read_config.h"
#include "frameworks/write/format_settings.h"

namespace longspan {
namespace {

constexpr int kMostRounds = 8;

// Knobs that follow from others, or that only some frameworks need: the model by name or by sizes,
// the batch or how often gradients accumulate.
bool is_compared(std::string_view knob) {
  constexpr std::string_view kOther[] = {
      "engine", "gpus",  "nodes",         "node-gpus", "model",        "layers",
      "hidden", "heads", "kv-heads",      "head-dim",  "ffn",          "vocabulary",
      "gated",  "tied",  "grouped-heads", "batch",     "accumulation", "qk-norm"};
  return std::find(std::begin(kOther), std::end(kOther), knob) == std::end(kOther);
}

// What comes nearest to a value that cannot be said, the nearest first.
std::vector<std::string> nearest_to(std::string_view knob, const std::string& value) {
  if (knob == "loss" && value != "whole") return {value == "tiled" ? "fused" : "tiled"};
  if (knob == "recompute" && value == "selective") return {"full"};
  if (value == "nvme") return {"host"};
  if (knob == "zero" && value != "0") return {"3", "2", "1"};
  return {};
}

class ConfigWriter {
 public:
  ConfigWriter(const Framework& framework, const RunKnobs& wanted)
      : framework_(framework), wanted_(wanted) {}

  WrittenConfig run() {
    for (const RunKnobRow& row : run_knob_rows()) {
      if (wanted_.has(row.name) && (row.matters || !is_compared(row.name))) add(row.name);
    }
    for (const FrameworkWrite& write : framework_.writes) {
      if (holds(write.when, wanted_)) settings_[write.key] = filled(write.value);
    }
    // What the files say is compared with what is wanted, until no setting is missing.
    WrittenConfig written;
    for (int round = 0; round < kMostRounds; ++round) {
      written.files = files();
      written.knobs = read(written.files);
      bool added = false;
      for (const RunKnobRow& row : run_knob_rows()) {
        if (!wanted_.has(row.name) || !is_compared(row.name)) continue;
        if (written.knobs.effective(row.name) != wanted_.effective(row.name)) {
          added = add(row.name) || added;
        }
      }
      if (!added) break;
    }
    for (const RunKnobRow& row : run_knob_rows()) {
      if (!wanted_.has(row.name) || !is_compared(row.name)) continue;
      const std::string wanted = wanted_.effective(row.name);
      const std::string said = written.knobs.effective(row.name);
      // An empty value is what the library takes by itself.
      if (wanted != said && !said.empty()) written.unsaid.push_back({row.name, wanted, said});
    }
    compare_models(written);
    written.settings.assign(settings_.begin(), settings_.end());
    return written;
  }

 private:
  // Adds the setting of a knob. Returns whether this changed anything.
  bool add(const std::string& knob) {
    const std::string value_wanted = wanted_.effective(knob);
    std::optional<FrameworkSetting> setting = setting_of(framework_, wanted_, knob, value_wanted);
    for (const std::string& nearest : nearest_to(knob, value_wanted)) {
      if (!setting) setting = setting_of(framework_, wanted_, knob, nearest);
    }
    if (!setting) return false;
    if (setting->value.empty()) return settings_.erase(setting->key) > 0;
    std::string& value = settings_[setting->key];
    if (value == setting->value) return false;
    value = setting->value;
    return true;
  }

  // The model that the files train, where they say one, against the one that is wanted.
  void compare_models(WrittenConfig& written) const {
    const auto says = [](const std::string& knob) { return knob == "model" || knob == "layers"; };
    const bool in_script =
        std::none_of(framework_.keys.begin(), framework_.keys.end(), [&](const FrameworkKey& key) {
          const bool is_written =
              key.write || std::any_of(framework_.writes.begin(), framework_.writes.end(),
                                       [&](const auto& write) { return write.key == key.key; });
          if (!is_written) return false;
          return says(key.sets) ||
                 std::any_of(key.values.begin(), key.values.end(), [&](const auto& entry) {
                   return std::any_of(entry.second.begin(), entry.second.end(),
                                      [&](const auto& set) { return says(set.first); });
                 });
        });
    if (in_script) return;
    std::optional<ModelSpec> own;
    try {
      own = model_of(written.knobs, framework_);
    } catch (const Error&) {
      return;  // a name that only the framework can load
    }
    if (!own) {
      written.unsaid.push_back({"model", wanted_.effective("model"), "none"});
      return;
    }
    if (!own->uniform()) return;
    for (const auto& [knob, value] : model_knobs(*own)) {
      // The vocabulary is padded, and the name is its own.
      if (knob == "model" || knob == "vocabulary" || !wanted_.has(knob)) continue;
      const std::string wanted = wanted_.effective(knob);
      if (wanted != value) written.unsaid.push_back({knob, wanted, value});
    }
  }

  std::vector<ConfigText> files() const {
    std::vector<ConfigText> files;
    std::string launch;
    const std::string comment = fmt::format("Written by longspan for {}.", framework_.version);
    for (const FrameworkFile& file : framework_.files) {
      if (!holds(file.when, wanted_)) continue;
      const FlatSettings settings = settings_of(file);
      const bool is_command =
          file.format == "flags" || file.format == "hydra" || file.format == "underscored";
      if (is_command) {
        launch = format_command(filled(file.launch), settings, file.format);
        continue;
      }
      FlatSettings environment, own;
      for (const auto& setting : settings) {
        (setting.first.starts_with("env.") ? environment : own).push_back(setting);
      }
      files.push_back({file.name, format_settings(own, file.format, comment)});
      if (!file.launch.empty()) launch = format_command(filled(file.launch), environment, "flags");
    }
    if (!launch.empty()) {
      files.push_back({"launch.sh", fmt::format("#!/usr/bin/env bash\n# {}\n{}", comment, launch)});
    }
    return files;
  }
  // The settings below the file's part, in the order of the framework's keys.
  FlatSettings settings_of(const FrameworkFile& file) const {
    FlatSettings settings;
    for (const FrameworkKey& key : framework_.keys) put(file, key.key, settings);
    for (const auto& [key, value] : settings_) put(file, key, settings);
    return settings;
  }
  void put(const FrameworkFile& file, const std::string& key, FlatSettings& settings) const {
    const auto it = settings_.find(key);
    if (it == settings_.end() || part_of(key) != file.at) return;
    const std::string name = file.at.empty() ? key : key.substr(file.at.size() + 1);
    const bool there = std::any_of(settings.begin(), settings.end(),
                                   [&](const auto& known) { return known.first == name; });
    if (!there) settings.emplace_back(name, it->second);
  }
  // The place of the innermost file that has the key.
  std::string part_of(const std::string& key) const {
    std::string at;
    for (const FrameworkFile& file : framework_.files) {
      if (!holds(file.when, wanted_) || file.at.size() <= at.size()) continue;
      if (key.starts_with(file.at + ".")) at = file.at;
    }
    return at;
  }
  // The text with knobs in the place of "{knob}".
  std::string filled(std::string text) const {
    for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open + 1)) {
      const size_t close = text.find('}', open);
      if (close == std::string::npos) break;
      const std::string knob = text.substr(open + 1, close - open - 1);
      if (find_run_knob(knob) != nullptr) {
        text.replace(open, close - open + 1, wanted_.effective(knob));
      }
    }
    return text;
  }

  RunKnobs read(const std::vector<ConfigText>& files) const {
    return read_config(files, framework_.name, [](const std::string&) { return std::nullopt; })
        .knobs;
  }

  const Framework& framework_;
  const RunKnobs& wanted_;
  std::map<std::string, std::string> settings_;
};

}  // namespace

WrittenConfig write_config(const Framework& framework, const RunKnobs& wanted) {
  return ConfigWriter(framework, wanted).run();
}

}  // namespace longspan
