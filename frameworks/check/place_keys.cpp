#include "frameworks/check/place_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "frameworks/knobs/spelling.h"

namespace longspan {
namespace {

bool is_number(std::string_view part) {
  return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
}

// The part of a key, as the config and the framework have files for it, and that file.
struct KeyFile {
  std::string name, at;
  bool is_new = false, is_command = false;
};

class KeyPlacer {
 public:
  KeyPlacer(const ConfigReading& config, const ConfigChange& change)
      : config_(config), framework_(*config.framework), change_(change) {}

  KeyFile file_of(const std::string& key) const {
    const auto& all = config_.settings.all();
    if (const auto it = all.find(key); it != all.end() && config_.files.contains(it->second.file)) {
      return known(it->second.file);
    }
    // The innermost part first.
    for (const std::string& at : parts_of(key)) {
      for (const auto& [name, file] : config_.files) {
        if (!at.empty() && file.at == at && !file.is_command) return known(name);
      }
      if (at.empty()) break;
      if (const auto next = all.lower_bound(at + "."); next != all.end() &&
                                                       next->first.starts_with(at + ".") &&
                                                       config_.files.contains(next->second.file)) {
        return known(next->second.file);
      }
      const auto& now = change_.reading.settings.all();
      const auto named = now.find(at);
      const bool names = named != now.end() && named->second.value.find('.') != std::string::npos;
      if (names && all.contains(at) && all.at(at).value == named->second.value) {
        return {named->second.value, at, false, false};
      }
      if (names) return {named->second.value, at, true, false};
      for (const FrameworkFile& file : framework_.files) {
        if (file.at == at && holds(file.when, change_.reading.knobs)) {
          return {file.name, at, true, false};
        }
      }
    }
    return root();
  }

  std::string text(const KeyFile& file, const std::string& key, const std::string& value) const {
    const std::string name = key.starts_with("env.") ? key.substr(4) : key;
    if (!file.is_command) {
      return value.empty() ? "without " + name : fmt::format("{}: {}", name, value);
    }
    const std::string& format = framework_.files.empty() ? "" : framework_.files.front().format;
    const bool hydra = format == "hydra", plain = hydra || key.starts_with("env.");
    if (plain) return value.empty() ? "without " + name : name + "=" + value;
    std::string flag = "--" + key;
    if (format == "flags") std::replace(flag.begin(), flag.end(), '_', '-');
    if (value.empty() || value == "false") return "without " + flag;
    return value == "true" ? flag : flag + " " + value;
  }

 private:
  KeyFile known(const std::string& name) const {
    const ReadFile& file = config_.files.at(name);
    return {name, file.at, false, file.is_command};
  }
  // The places of parts that a key may be in, longest first.
  std::vector<std::string> parts_of(const std::string& key) const {
    std::vector<std::string> parts{""};
    const auto add = [&](const std::string& at) {
      if (!at.empty() && key.starts_with(at + ".")) parts.push_back(at);
    };
    for (const FrameworkPart& part : framework_.parts) add(part.at);
    for (const FrameworkFile& file : framework_.files) add(file.at);
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return a.size() > b.size(); });
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    return parts;
  }
  // The file with most of the settings that stand in no part.
  KeyFile root() const {
    std::map<std::string, int64_t> counts;
    for (const auto& [key, setting] : config_.settings.all()) {
      const auto file = config_.files.find(setting.file);
      if (file == config_.files.end() || !file->second.at.empty()) continue;
      if (!key.starts_with("env.")) ++counts[setting.file];
    }
    const auto most =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != counts.end()) return known(most->first);
    for (const auto& [name, file] : config_.files) {
      if (file.at.empty()) return known(name);
    }
    const bool any = !framework_.files.empty();
    return {any ? framework_.files.front().name : "", "", true, false};
  }

  const ConfigReading& config_;
  const Framework& framework_;
  const ConfigChange& change_;
};

// The elements of a list below `at`, as JSON.
std::string list_text(const Settings& settings, const std::string& at) {
  std::string text;
  const auto& all = settings.all();
  for (int64_t i = 0;; ++i) {
    const std::string key = fmt::format("{}.{}", at, i);
    const auto value = all.find(key);
    const auto below = all.lower_bound(key + ".");
    const bool nested = below != all.end() && below->first.starts_with(key + ".0");
    if (value == all.end() && !nested) break;
    text += i == 0 ? "" : ", ";
    text += nested ? list_text(settings, key) : "\"" + value->second.value + "\"";
  }
  return "[" + text + "]";
}

}  // namespace

std::string list_of(const std::string& key) {
  for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
    const size_t end = std::min(key.find('.', dot + 1), key.size());
    if (is_number(std::string_view(key).substr(dot + 1, end - dot - 1))) return key.substr(0, dot);
  }
  return "";
}

std::vector<PlacedKey> place_keys(const ConfigReading& config, const ConfigChange& change) {
  const KeyPlacer placer(config, change);
  std::vector<PlacedKey> placed;
  for (const ChangedKey& changed : change.keys) {
    const KeyFile file = placer.file_of(changed.key);
    std::string key = changed.key, value = changed.value;
    if (const std::string list = list_of(key); !list.empty()) {
      key = list;
      value = list_text(change.reading.settings, list);
    }
    if (!file.at.empty() && key.starts_with(file.at + ".")) key = key.substr(file.at.size() + 1);
    const bool again = std::any_of(placed.begin(), placed.end(), [&](const PlacedKey& p) {
      return p.file == file.name && p.key == key;
    });
    if (!again)
      placed.push_back({file.name, file.is_new, key, value, placer.text(file, key, value)});
  }
  // Files together, in the order of their first keys.
  std::vector<std::string> order;
  const auto rank = [&](const PlacedKey& p) {
    return std::find(order.begin(), order.end(), p.file) - order.begin();
  };
  for (const PlacedKey& p : placed) {
    if (rank(p) == std::ssize(order)) order.push_back(p.file);
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [&](const PlacedKey& a, const PlacedKey& b) { return rank(a) < rank(b); });
  return placed;
}

std::string change_text(const ConfigReading& config, const std::vector<PlacedKey>& keys) {
  const bool several =
      config.files.size() > 1 ||
      std::any_of(keys.begin(), keys.end(), [](const PlacedKey& p) { return p.is_new; });
  std::string text;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool first = i == 0 || keys[i].file != keys[i - 1].file;
    if (i > 0) text += first ? "; " : ", ";
    if (several && first) {
      const std::string name = std::filesystem::path(keys[i].file).filename().string();
      text += fmt::format("{}{}: ", keys[i].is_new ? "new " : "", name);
    }
    text += keys[i].text;
  }
  return text;
}

}  // namespace longspan
