#include "frameworks/read/read_config.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/error.h"
#include "frameworks/read/recognize.h"

namespace longspan {
namespace {

std::string name_of_path(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

class ConfigReader {
 public:
  ConfigReader(const Framework& framework, const std::vector<ConfigFile>& files,
               const ConfigOpener& open)
      : framework_(framework), files_(files), open_(open) {
    reading_.framework = &framework;
  }

  ConfigReading run(const FrameworkClaim& claim) {
    // Flags of a command replace the same keys of a file.
    for (const bool commands : {false, true}) {
      for (size_t i = 0; i < files_.size(); ++i) {
        if (files_[i].is_model) {
          reading_.model_config = files_[i].text;
          reading_.model_config_name = files_[i].name;
          continue;
        }
        const ConfigCommand* const command = claim.files[i].command;
        if (commands != (command != nullptr)) continue;
        reading_.files[files_[i].name] = {claim.files[i].at, commands};
        settings_.add(command != nullptr ? command->settings : files_[i].settings,
                      claim.files[i].at);
      }
    }
    add_named_files();
    for (const ClaimedFile& file : claim.files) {
      for (const auto& [program, sets] : framework_.started_by) {
        if (file.command == nullptr || file.command->words.find(program) == std::string::npos) {
          continue;
        }
        reading_.of_program.insert(reading_.of_program.end(), sets.begin(), sets.end());
      }
    }
    interpret();
    return std::move(reading_);
  }

  ConfigReading run_again(const ConfigReading& before, const std::vector<ChangedKey>& changes) {
    settings_ = before.settings;
    reading_.files = before.files;
    reading_.of_program = before.of_program;
    reading_.model_config = before.model_config;
    reading_.model_config_name = before.model_config_name;
    // What names files comes first, as a new file has none of the old one's settings.
    for (const bool names : {true, false}) {
      for (const ChangedKey& change : changes) {
        if (names_file(change.key) == names) change_key(change);
      }
    }
    interpret();
    return std::move(reading_);
  }

 private:
  // The knobs that the settings say.
  void interpret() {
    reading_.settings = settings_;
    resolve_references();
    for (const auto& [knob, value] : framework_.knobs) reading_.knobs.set(knob, value);
    for (const auto& [knob, value] : reading_.of_program) reading_.knobs.set(knob, value);
    for (const FrameworkKey& key : framework_.keys) apply(key);
    for (const auto& [knob, taken] : defaults_) {
      reading_.default_keys[knob] = taken.taken.key;
      if (find_run_knob(knob)->matters) reading_.defaults.push_back(taken.taken);
    }
    note_compiled();
    find_unknown();
    expect_settings();
    for (const auto& [key, setting] : settings_.all()) reading_.keys.insert(key);
  }

  bool names_file(const std::string& key) const {
    return std::any_of(framework_.keys.begin(), framework_.keys.end(),
                       [&](const FrameworkKey& k) { return !k.file.empty() && k.key == key; });
  }
  void change_key(const ChangedKey& change) {
    Settings changed;
    for (const auto& [key, setting] : settings_.all()) {
      const bool below = key.starts_with(change.key + ".");
      if (key != change.key && !below) changed.set(key, setting);
    }
    const auto old = settings_.all().find(change.key);
    Setting setting;
    if (old != settings_.all().end()) setting.file = old->second.file;
    setting.value = change.value;
    if (!change.value.empty()) changed.set(change.key, setting);
    settings_ = std::move(changed);
  }

  // The settings of files that others name, below the key that names them.
  void add_named_files() {
    for (const FrameworkKey& key : framework_.keys) {
      if (key.file.empty()) continue;
      const std::optional<std::string> at = present(key);
      if (!at) continue;
      const std::string below = key.file == "own" ? "" : key.key;
      if (written(*at, below)) continue;
      const std::optional<std::string> path = settings_.text(*at);
      if (!path) continue;
      if (given(*path, below)) continue;
      // A name that the framework ships, and no file.
      const KnobValues* const shipped = values_of(key, *path);
      const bool known = shipped != nullptr && shipped != values_of(key, "\n");
      if (known && is_word_of(key, *path)) continue;
      const std::optional<std::string> text = open_(*path);
      if (text) {
        add_below(read_config_file({*path, *text}).settings, below);
        reading_.files[*path] = {below, false};
      } else {
        reading_.notes.push_back(
            fmt::format("{} names {}, which was not found; its settings are taken {}", *at, *path,
                        known ? "as its name says" : "as their defaults"));
      }
    }
  }
  // Whether the script itself writes the file that the setting names. Both have the same name, also
  // where a part of it is not known, such as the number of a job.
  bool written(const std::string& at, const std::string& below) {
    Setting named = settings_.all().at(at);
    for (const ConfigFile& file : files_) {
      const auto text = file.written.find(named.value);
      if (named.value.empty() || text == file.written.end()) continue;
      add_below(read_config_file({text->first, text->second}).settings, below);
      reading_.files[text->first] = {below, false};
      named.unresolved.clear();
      settings_.set(at, named);
      return true;
    }
    return false;
  }
  // Adds settings that those which are there replace.
  void add_below(const Settings& named, const std::string& below) {
    Settings both;
    both.add(named, below);
    both.add(settings_);
    settings_ = std::move(both);
  }
  // "${variables.max_seq_len}" stands for another key's value (OmegaConf); "optimizer=NAME" on a
  // command line for the component of a file's optimizer (torchtune).
  void resolve_references() {
    Settings resolved;
    for (const auto& [key, setting] : settings_.all()) {
      Setting value = setting;
      const std::string& text = setting.value;
      if (text.starts_with("${") && text.ends_with("}")) {
        const auto named = settings_.all().find(text.substr(2, text.size() - 3));
        if (named != settings_.all().end()) value.value = named->second.value;
      }
      resolved.set(key, value);
    }
    for (const auto& [key, setting] : settings_.all()) {
      const std::string component = key + "._component_";
      if (settings_.all().contains(component)) resolved.set(component, setting);
    }
    settings_ = resolved;
  }
  // Whether a file of this name was given; its settings stand below its part, or the key.
  bool given(const std::string& path, const std::string& below) {
    for (const ConfigFile& file : files_) {
      if (name_of_path(file.name) != name_of_path(path)) continue;
      add_below(file.settings, below);
      reading_.files[file.name] = {below, false};
      return true;
    }
    return false;
  }

  // The key, or an older name of it, in the settings.
  std::optional<std::string> present(const FrameworkKey& key) const {
    const auto find = [&](const std::string& name) -> std::optional<std::string> {
      if (name.find('*') == std::string::npos) {
        if (settings_.has(name)) return name;
        const bool is_count =
            !key.sets.empty() && find_run_knob(key.sets)->kind == RunKnobKind::count;
        if (!is_count && settings_.has(name + ".0")) return name + ".0";
        return std::nullopt;
      }
      std::optional<std::string> first;
      for (const auto& [given, setting] : settings_.all()) {
        if (!matches(name, given)) continue;
        settings_.has(given);
        if (!first) first = given;
      }
      return first;
    };
    std::optional<std::string> found = find(key.key);
    for (const std::string& other : key.also) {
      const std::optional<std::string> older = find(other);
      if (!found) found = older;
    }
    return found;
  }

  void apply(const FrameworkKey& key) {
    const std::optional<std::string> name = present(key);
    if (!holds(key.when, reading_.knobs)) return;
    if (name && key.each) return apply_each(key);
    if (name && *name != key.key) reading_.written_as[key.key] = *name;
    if (key.sets == "model" && name && !settings_.all().at(*name).unresolved.empty()) {
      reading_.unresolved_model = settings_.unresolved(*name).what();
      return;
    }
    const std::optional<std::string> value = name ? settings_.text(*name) : std::nullopt;
    const bool null = name && settings_.all().at(*name).is_null;
    const KnobValues* const of_null = null ? values_of(key, "none") : nullptr;
    if (value) {
      apply_value(key, *name, *value);
    } else if (of_null != nullptr) {
      for (const auto& [knob, word] : *of_null) set(knob, word, *name);
    } else if (key.standard) {
      apply_default(key);
    }
  }

  // The key's value, or all of a list.
  void apply_each(const FrameworkKey& key) {
    for (const auto& [given, setting] : settings_.all()) {
      const bool of_list = given.starts_with(key.key + ".");
      if (given != key.key && !of_list) continue;
      const std::optional<std::string> value = settings_.text(given);
      if (value) apply_value(key, given, *value);
    }
  }

  void apply_value(const FrameworkKey& key, const std::string& name, const std::string& value) {
    if (const KnobValues* const sets = values_of(key, value)) {
      for (const auto& [knob, word] : *sets) set(knob, word, name);
      return;
    }
    if (key.sets.empty()) {
      if (key.file.empty()) note_value(name, value);
      return;
    }
    const RunKnobRow& row = *find_run_knob(key.sets);
    switch (row.kind) {
      case RunKnobKind::count: {
        int64_t count = *settings_.whole(name);
        if (key.adds) count += reading_.knobs.count_or(key.sets, 0);
        if (count < row.least) {
          throw settings_.error(
              name, fmt::format("expected a whole number >= {}, got {}", row.least, count));
        }
        set(key.sets, std::to_string(count), name);
        break;
      }
      case RunKnobKind::flag:
        set(key.sets, *settings_.flag(name) ? "true" : "false", name);
        break;
      case RunKnobKind::share:
        set(key.sets, fmt::format("{}", *settings_.real(name)), name);
        break;
      case RunKnobKind::choice: {
        const std::vector<std::string> words = words_of(row);
        const auto word = std::find_if(words.begin(), words.end(),
                                       [&](const std::string& w) { return same_value(w, value); });
        if (word != words.end()) {
          set(key.sets, *word, name);
        } else {
          note_value(name, value);
        }
        break;
      }
      case RunKnobKind::text:
        if (!value.empty()) set(key.sets, value, name);
        break;
    }
  }

  void apply_default(const FrameworkKey& key) {
    KnobValues sets;
    if (const KnobValues* const known = values_of(key, *key.standard)) {
      sets = *known;
    } else if (!key.sets.empty()) {
      sets = {{key.sets, *key.standard}};
    }
    if (key.adds && !key.sets.empty()) {
      const int64_t sum = reading_.knobs.count_or(key.sets, 0) + std::stoll(*key.standard);
      reading_.knobs.set(key.sets, sum);
      return;
    }
    for (const auto& [knob, word] : sets) {
      const auto taken = defaults_.find(knob);
      const bool of_block = taken != defaults_.end() && !taken->second.own;
      if (reading_.knobs.has(knob) && !(key.own && of_block)) continue;
      reading_.knobs.set(knob, word);
      defaults_[knob] = {{key.key, *key.standard, knob}, key.own};
    }
  }

  // What a value of the key sets; null if its values say nothing about it.
  static const KnobValues* values_of(const FrameworkKey& key, const std::string& value) {
    const auto find = [&](const auto& same) -> const KnobValues* {
      for (const auto& [known, sets] : key.values) {
        if (same(known)) return &sets;
      }
      return nullptr;
    };
    if (const auto* exact = find([&](const std::string& known) { return known == value; })) {
      return exact;
    }
    if (const auto* same = find([&](const std::string& k) { return same_value(k, value); })) {
      return same;
    }
    const std::string lower = lower_case(value);
    return find([&](const std::string& known) {
      return known.find('*') != std::string::npos && matches(known, lower);
    });
  }

  // Whether the key lists the value itself, not a pattern of it.
  static bool is_word_of(const FrameworkKey& key, const std::string& value) {
    return std::any_of(key.values.begin(), key.values.end(), [&](const auto& entry) {
      return entry.first.find('*') == std::string::npos && same_value(entry.first, value);
    });
  }

  void set(const std::string& knob, const std::string& value, const std::string& name) {
    try {
      reading_.knobs.set(knob, value);
    } catch (const Error& e) {
      throw settings_.error(name, e.what());
    }
    reading_.places[knob] = name;
    defaults_.erase(knob);
  }

  void note_value(const std::string& key, const std::string& value) {
    // An item of a list is named by its value, not by its number.
    const size_t dot = key.rfind('.');
    const bool numbered =
        dot != key.npos && key.find_first_not_of("0123456789", dot + 1) == key.npos;
    const std::string name = numbered ? key.substr(0, dot) : key;
    reading_.notes.push_back(
        fmt::format("{}: \"{}\" is not known and has no effect on the answer", name, value));
  }

  // Where no stack of the framework is of compiled layers, what they gain is not known.
  void note_compiled() {
    const auto place = reading_.places.find("compile");
    if (!reading_.knobs.flag("compile") || place == reading_.places.end()) return;
    const bool known =
        std::any_of(framework_.stacks.begin(), framework_.stacks.end(),
                    [](const auto& entry) { return entry.first.contains("compile"); });
    if (known) return;
    reading_.notes.push_back(place->second +
                             ": layers are predicted as they run without torch.compile");
  }

  // The key as its file has it: a file of a part stands below the part's place.
  std::string own_name(const std::string& key) const {
    const auto file = reading_.files.find(settings_.all().at(key).file);
    if (file == reading_.files.end() || file->second.at.empty()) return key;
    const std::string& at = file->second.at;
    return key.starts_with(at + ".") ? key.substr(at.size() + 1) : key;
  }

  // Defaults alone are an answer to no question: a script's flags may stand where they are not
  // read.
  void expect_settings() const {
    static const std::set<std::string> kCounts = {"gpus", "nodes", "node-gpus"};
    const bool any = std::any_of(reading_.places.begin(), reading_.places.end(),
                                 [](const auto& p) { return !kCounts.contains(p.first); });
    // A value may set nothing.
    const bool own =
        std::any_of(framework_.keys.begin(), framework_.keys.end(), [&](const FrameworkKey& key) {
          return key.own && !kCounts.contains(key.sets) && settings_.all().contains(key.key);
        });
    if (any || own || files_.empty()) return;
    throw bad_input("{}: no setting of {} was found; give its flags or its config file",
                    files_[0].name, framework_.name);
  }
  void find_unknown() {
    for (const std::string& key : settings_.unread()) {
      // A script's environment has many variables for others.
      if (key.starts_with("env.")) continue;
      if (!knows(framework_, key)) reading_.unknown.push_back(own_name(key));
    }
  }

  const Framework& framework_;
  const std::vector<ConfigFile>& files_;
  const ConfigOpener& open_;
  Settings settings_;
  ConfigReading reading_;
  struct Default {
    TakenDefault taken;
    bool own = false;
  };
  std::map<std::string, Default> defaults_;  // by knob
};

}  // namespace

ConfigReading read_config(const std::vector<ConfigText>& texts, const std::string& framework,
                          const ConfigOpener& open) {
  std::vector<ConfigFile> files;
  std::set<std::string> names;
  for (const ConfigText& text : texts) {
    if (!names.insert(text.name).second) throw bad_input("{}: given twice", text.name);
    files.push_back(read_config_file(text));
  }
  FrameworkClaim claimed =
      framework.empty() ? recognize(files) : claim(load_framework(framework), files);
  if (claimed.refused && !files.empty()) {
    throw bad_input("{}: has no key of {}", files[*claimed.refused].name, framework);
  }
  return ConfigReader(*claimed.framework, files, open).run(claimed);
}

ConfigReading read_changed(const ConfigReading& reading, const std::vector<ChangedKey>& changes) {
  const std::vector<ConfigFile> none;
  const ConfigOpener closed = [](const std::string&) { return std::nullopt; };
  return ConfigReader(*reading.framework, none, closed).run_again(reading, changes);
}

}  // namespace longspan
