// A user's config, read: the framework, the knobs that its keys set, and what was not understood.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "frameworks/knobs/framework.h"
#include "frameworks/knobs/run_knobs.h"
#include "frameworks/read/config_file.h"

namespace longspan {

/// A default that the framework takes, as the config leaves the key out.
struct TakenDefault {
  std::string key, value;
  std::string knob;
};

/// A file of a config.
struct ReadFile {
  std::string at;           // the key below which its settings stand
  bool is_command = false;  // they are flags
};

struct ConfigReading {
  const Framework* framework = nullptr;
  RunKnobs knobs;
  /// For each knob that a key has set: "axolotl.yaml:12: context_parallel_size: 8".
  std::map<std::string, std::string> places;
  std::set<std::string> keys;  // all that the files have
  /// For each key that the config writes by another of its names: that name.
  std::map<std::string, std::string> written_as;
  std::map<std::string, std::string> default_keys;  // for each knob that a default has set
  std::vector<TakenDefault> defaults;               // of knobs that matter
  std::vector<std::string> unknown;                 // keys
  std::vector<std::string> notes;                   // sentences
  Settings settings;                      // those of named files below the key that names them
  std::map<std::string, ReadFile> files;  // by name
  KnobValues of_program;                  // what the program that the config starts sets
  std::string model_config;               // the text of a config.json among the files; empty: none
  std::string model_config_name;
  /// Why the name of the model is not known, as only running a script would tell it; empty: it is,
  /// or the config has none.
  std::string unresolved_model;
};

/// Opens a file that a config names, as the config names it; nothing if there is none.
using ConfigOpener = std::function<std::optional<std::string>(const std::string& path)>;

/// Reads files that belong together. `framework`: its name; empty: found out. Throws bad_input if
/// no framework, or more than one, has such files; for a value of the wrong kind, with its place;
/// and for one that only running the script would tell, but for the model's name, which a user can
/// give in another way.
ConfigReading read_config(const std::vector<ConfigText>& files, const std::string& framework,
                          const ConfigOpener& open);

/// A key of a config, and the value that it gets. An empty value takes the key out.
struct ChangedKey {
  std::string key, value;
  bool operator==(const ChangedKey&) const = default;
};

/// The reading of the same files with some keys changed. Where a key names another file than
/// before, what the old one had is gone. Throws bad_input as read_config().
ConfigReading read_changed(const ConfigReading& reading, const std::vector<ChangedKey>& changes);

}  // namespace longspan
