#include "frameworks/knobs/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace longspan {
namespace {

bool sets(const KnobValues& values, const std::string& knob, const std::string& value) {
  return std::find(values.begin(), values.end(), std::pair(knob, value)) != values.end();
}

// The format of the file that a key stands in.
std::string format_of(const Framework& framework, const std::string& key) {
  std::string format = "yaml", at;
  bool first = true;
  for (const FrameworkFile& file : framework.files) {
    const bool here = file.at.empty() ? at.empty() : key.starts_with(file.at + ".");
    if (!here || (!first && file.at.empty())) continue;
    format = file.format;
    at = file.at;
    first = false;
  }
  return format;
}

}  // namespace

std::optional<FrameworkSetting> setting_of(const Framework& framework, const RunKnobs& knobs,
                                           const std::string& knob, const std::string& value) {
  // The result is the first of the settings that change the fewest other knobs.
  std::optional<FrameworkSetting> best;
  int64_t least = 0;
  const auto consider = [&](FrameworkSetting setting) {
    const int64_t others =
        std::count_if(setting.sets.begin(), setting.sets.end(), [&](const auto& entry) {
          return entry.first != knob && knobs.effective(entry.first) != entry.second;
        });
    if (best && others >= least) return;
    least = others;
    best = std::move(setting);
  };
  for (const FrameworkKey& key : framework.keys) {
    if (!key.write || key.key.find('*') != std::string::npos || !holds(key.when, knobs)) continue;
    for (const auto& [word, values] : key.values) {
      if (word != "*" && word != "missing" && sets(values, knob, value))
        consider({key.key, word, values});
    }
    if (key.sets != knob) continue;
    // A value that means something else cannot be said.
    const bool taken = std::any_of(key.values.begin(), key.values.end(), [&](const auto& entry) {
      return same_value(entry.first, value);
    });
    const bool listed = std::any_of(key.values.begin(), key.values.end(), [](const auto& entry) {
      return entry.first.find('*') == std::string::npos;
    });
    const bool named = find_run_knob(knob)->kind == RunKnobKind::choice && listed;
    if (!taken && !named) consider({key.key, value, {{knob, value}}});
  }
  if (best) return best;
  // A value that no key says holds if the key of the other values is missing.
  const std::string current = knobs.effective(knob);
  if (current == value || find_run_knob(knob)->unset != value) return std::nullopt;
  const std::optional<FrameworkSetting> other = setting_of(framework, knobs, knob, current);
  if (!other) return std::nullopt;
  return FrameworkSetting{other->key, "", {{knob, value}}};
}

std::string spelled_key(const Framework& framework, const std::string& whole) {
  // A file of a part has the key without the part's place.
  std::string key = whole;
  size_t longest = 0;
  for (const FrameworkPart& part : framework.parts) {
    const bool here = !part.at.empty() && whole.starts_with(part.at + ".");
    const bool has_file =
        std::any_of(framework.files.begin(), framework.files.end(),
                    [&](const FrameworkFile& file) { return file.at == part.at; });
    if (!here || !has_file || part.at.size() <= longest) continue;
    longest = part.at.size();
    key = whole.substr(longest + 1);
  }
  if (format_of(framework, key) != "flags" || key.find('.') != std::string::npos) return key;
  std::string flag = key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return "--" + flag;
}

std::string name_of_knob(const Framework& framework, const std::string& knob) {
  for (const FrameworkKey& key : framework.keys) {
    if (key.sets == knob && key.write) return spelled_key(framework, key.key);
  }
  return knob;
}

std::string spelled(const Framework& framework, const FrameworkSetting& setting) {
  const std::string key = spelled_key(framework, setting.key);
  if (setting.value.empty()) return "without " + key;
  if (!key.starts_with("--")) return fmt::format("{}: {}", key, setting.value);
  if (setting.value == "true") return key;
  return setting.value == "false" ? "without " + key : key + " " + setting.value;
}

}  // namespace longspan
