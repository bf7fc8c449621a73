// One file of a user's configuration: its settings, whatever its format. Plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "frameworks/files/settings.h"

namespace longspan {

/// A file as the user has it. The name is for messages; its ending says the format.
struct ConfigText {
  std::string name;
  std::string text;
};

/// A command of a script.
struct ConfigCommand {
  std::string words;  // "torchrun --nproc_per_node 8 train.py ..."
  Settings settings;  // its flags, and its environment below "env."
};

struct ConfigFile {
  std::string name;
  Settings settings;                    // of a file of settings
  std::vector<ConfigCommand> commands;  // of a script, those with flags
  /// Files that a script writes, by the names that it gives them.
  std::map<std::string, std::string> written;
  bool is_model = false;  // a model's config.json
  std::string text;
};

/// Reads .yaml, .yml, .json, .toml, .py (assignments of literals) and anything else as a shell
/// script, unless it begins as JSON does. Throws bad_input with name and line for text that is not
/// of its format.
ConfigFile read_config_file(const ConfigText& file);

}  // namespace longspan
