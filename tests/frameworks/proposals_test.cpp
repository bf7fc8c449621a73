// Every change that check proposes, written into the files of the config and asked again.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/yaml.h"
#include "frameworks/check/check_config.h"
#include "frameworks/read/read_config.h"
#include "frameworks/write/format_settings.h"
#include "hwprofiles/catalog.h"
#include "models/catalog.h"

using namespace longspan;

namespace {

namespace fs = std::filesystem;

// A config with the files that it names.
struct Config {
  std::vector<ConfigText> files;             // given
  std::map<std::string, std::string> named;  // by the name of the file alone

  ConfigReading read() const {
    return read_config(files, "", [&](const std::string& path) -> std::optional<std::string> {
      const auto it = named.find(fs::path(path).filename().string());
      return it == named.end() ? std::nullopt : std::optional(it->second);
    });
  }
};

Config config_in(const fs::path& folder, const std::vector<std::string>& files) {
  Config config;
  for (const std::string& file : files) config.files.push_back({file, read_file(folder / file)});
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      config.named[entry.path().filename().string()] = read_file(entry.path());
    }
  }
  return config;
}

std::string ending_of(const std::string& name) {
  const std::string ending = fs::path(name).extension().string();
  return ending == ".yml" ? "yaml" : ending.empty() ? "" : ending.substr(1);
}

// Settings with the changes of one file. An element of a list stands under its own key.
Settings changed(const Settings& before, const std::string& at,
                 const std::vector<ChangedKey>& changes) {
  Settings after = before;
  for (const ChangedKey& change : changes) {
    std::string key = change.key;
    if (!at.empty() && key.starts_with(at + ".")) key = key.substr(at.size() + 1);
    Settings next;
    for (const auto& [name, setting] : after.all()) {
      if (name != key && !name.starts_with(key + ".")) next.set(name, setting);
    }
    if (!change.value.empty()) next.set(key, {change.value, false, "", 0, ""});
    after = next;
  }
  return after;
}

FlatSettings flat(const Settings& settings) {
  FlatSettings all;
  for (const auto& [key, setting] : settings.all()) {
    all.emplace_back(key, setting.is_null ? "null" : setting.value);
  }
  return all;
}

// The text of a script with the changed settings of its command; other commands stay as they are.
std::string script(const std::string& text, const std::string& name, const ConfigReading& reading,
                   const std::vector<ChangedKey>& changes) {
  const ConfigFile file = read_config_file({name, text});
  const bool hydra =
      !reading.framework->files.empty() && reading.framework->files.front().format == "hydra";
  std::string out;
  for (const ConfigCommand& command : file.commands) {
    // The command that the reading has taken its settings from.
    const auto& all = reading.settings.all();
    const bool is_read = std::all_of(
        command.settings.all().begin(), command.settings.all().end(), [&](const auto& entry) {
          const auto it = all.find(entry.first);
          return it != all.end() && it->second.value == entry.second.value;
        });
    const Settings settings = is_read ? changed(command.settings, "", changes) : command.settings;
    std::string line;
    for (const auto& [key, setting] : settings.all()) {
      if (key.starts_with("env.")) line += key.substr(4) + "='" + setting.value + "' ";
    }
    // The words before the first flag.
    std::string words = command.words;
    for (const std::string& flag : {std::string(" --"), std::string(" -"), std::string("=")}) {
      const size_t end = words.find(flag);
      if (end == std::string::npos) continue;
      words = flag == "=" ? words.substr(0, words.rfind(' ', end)) : words.substr(0, end);
    }
    const bool flags_alone = command.words.starts_with("-");
    line += flags_alone ? "python train.py" : words;
    for (const auto& [key, setting] : settings.all()) {
      if (key.starts_with("env.")) continue;
      line += hydra && key.find('.') != std::string::npos
                  ? fmt::format(" '{}={}'", key, setting.value)
                  : fmt::format(" '--{}={}'", key, setting.value);
    }
    out += line + "\n";
  }
  return out;
}

// A Python file with the changes at its end, as a later assignment replaces an earlier one.
std::string python(std::string text, const std::vector<ChangedKey>& changes) {
  for (const ChangedKey& change : changes) {
    const size_t dot = change.key.find('.');
    const bool is_word = change.value.find_first_not_of("0123456789") != std::string::npos;
    std::string value = is_word ? "'" + change.value + "'" : change.value;
    if (same_value(change.value, "true")) value = "True";
    if (same_value(change.value, "false")) value = "False";
    if (change.value.empty()) value = "None";
    if (dot == std::string::npos) {
      text += fmt::format("{} = {}\n", change.key, value);
    } else {
      text += fmt::format("{} = dict({}={})\n", change.key.substr(0, dot),
                          change.key.substr(dot + 1), value);
    }
  }
  return text;
}

// The config with a change in its files.
Config with(const Config& config, const ConfigReading& reading, const ProposedChange& change) {
  std::map<std::string, std::vector<ChangedKey>> by_file;
  std::map<std::string, bool> is_new;
  for (const ChangedKey& key : change.changed) {
    const ConfigChange one{{key}, read_changed(reading, change.changed)};
    const std::vector<PlacedKey> placed = place_keys(reading, one);
    REQUIRE(placed.size() == 1);
    by_file[placed[0].file].push_back(key);
    is_new[placed[0].file] = placed[0].is_new;
  }
  Config after = config;
  for (const auto& [name, changes] : by_file) {
    const std::string alone = fs::path(name).filename().string();
    const auto known = reading.files.find(name);
    const auto given =
        std::find_if(after.files.begin(), after.files.end(),
                     [&, &file = name](const ConfigText& t) { return t.name == file; });
    const bool exists = given != after.files.end() || after.named.contains(alone);
    std::string text = given != after.files.end() ? given->text : exists ? after.named[alone] : "";
    std::string at = known != reading.files.end() ? known->second.at : "";
    if (known == reading.files.end()) {
      // A new file, or one that the config names and that is not there.
      for (const FrameworkPart& part : reading.framework->parts) {
        if (part.at.size() > at.size() && changes[0].key.starts_with(part.at + ".")) at = part.at;
      }
      for (const FrameworkFile& file : reading.framework->files) {
        if (file.at.size() > at.size() && changes[0].key.starts_with(file.at + ".")) at = file.at;
      }
      text = "";
    }
    if (known != reading.files.end() && known->second.is_command) {
      text = script(text, name, reading, changes);
    } else if (ending_of(name) == "py") {
      text = python(text, changes);
    } else {
      const Settings before = text.empty() ? Settings() : read_config_file({name, text}).settings;
      text = format_settings(flat(changed(before, at, changes)), ending_of(name), "");
    }
    if (given != after.files.end()) {
      given->text = text;
      after.named[alone] = text;
    } else if (is_new[name] && !at.starts_with("config_file.") && at == "config_file") {
      after.files.push_back({alone, text});  // named by the launcher
    } else {
      after.named[alone] = text;
    }
  }
  return after;
}

struct Asked {
  std::string hardware;
  int64_t sequence = 0;
  ModelSpec model;
};

int64_t check_changes(const Config& config, const Asked& asked) {
  const ConfigReading reading = config.read();
  const HardwareProfile hw = load_hardware(asked.hardware);
  const ConfigCheck before = check_config(reading, asked.model, hw, {.sequence = asked.sequence});
  for (const ProposedChange& change : before.changes) {
    CAPTURE(asked.hardware, change_text(reading, change.keys));
    const Config changed_files = with(config, reading, change);
    std::string texts;
    for (const ConfigText& file : changed_files.files) texts += file.name + "\n" + file.text + "\n";
    for (const auto& [name, text] : changed_files.named)
      texts += "named " + name + "\n" + text + "\n";
    CAPTURE(texts);
    std::string refusal;
    try {
      const ConfigReading again = changed_files.read();
      const ConfigCheck after =
          check_config(again, asked.model, hw, {.sequence = asked.sequence, .changes = -1});
      CHECK(after.fit == change.fit);
      CHECK(after.predicted.needs.device == Approx(change.device_bytes).epsilon(1e-9));
      CHECK(after.predicted.time.step() == Approx(change.step_seconds).epsilon(1e-9));
      CHECK(after.configured.run.step_sequences() == Approx(change.sequences));
      if (change.keeps_batch) {
        CHECK(after.configured.run.step_sequences() ==
              Approx(before.configured.run.step_sequences()));
      }
    } catch (const Error& e) {
      refusal = e.what();
    }
    CHECK(refusal == "");
  }
  return std::ssize(before.changes);
}

}  // namespace

TEST_CASE("configs with a change that check proposes run as it says", "[frameworks]") {
  const fs::path folder = LONGSPAN_SOURCE "/tests/frameworks/configs";
  int64_t changes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "bad") continue;
    CAPTURE(name);
    const fs::path path = entry.path() / "expected.yaml";
    const YamlMap expected = YamlMap::parse(read_file(path), path.string());
    Config config = config_in(entry.path(), expected.texts("files"));
    const ConfigReading reading = config.read();
    std::optional<ModelSpec> model;
    try {
      model = model_of(reading.knobs, *reading.framework);
    } catch (const Error&) {
    }
    if (!model) model = load_model("llama-3.1-8b");
    for (const char* hw : {"8xh100-80g", "4x8xh100-80g", "4xrtx-4090"}) {
      const int64_t sequence = expected.has("arguments") ? 8192 : 0;
      try {
        changes += check_changes(config, {hw, sequence, *model});
      } catch (const Error&) {
        continue;  // it is for other hardware
      }
    }
  }
  CHECK(changes > 300);
}
