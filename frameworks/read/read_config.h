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
  std::string model_config;  // the text of a config.json among the files; empty: none
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

}  // namespace longspan
