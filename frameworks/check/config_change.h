// Changes of a user's config: the keys with which its framework runs otherwise, and the run that
// the framework then makes of the whole config.
//
// A change is read back: its knobs are those of the config with its keys, not those that were
// wished for. Pure functions; safe from any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frameworks/read/read_config.h"

namespace longspan {

/// Keys, and the config that has them.
struct ConfigChange {
  std::vector<ChangedKey> keys;  // each once; none: the config as it is
  ConfigReading reading;
};

/// The change with which the config says that a knob has a value, on top of what `from` changes. Of
/// several, the one that changes the fewest other knobs; keys of the config come before others. It
/// has what an export would write along, and what keeps other knobs as they are where the framework
/// has other keys for them. Nothing if no key says so.
std::optional<ConfigChange> change_knob(const ConfigReading& config, const ConfigChange& from,
                                        const std::string& knob, const std::string& value);

/// A changed key as its file has it.
struct PlacedKey {
  std::string file;        // its name
  bool is_new = false;     // the config has no such file yet
  std::string key, value;  // an empty value: the key goes
  std::string text;        // "--recompute-granularity full", "micro_batch_size: 1"
};
/// The keys with the files that they go to, keys of one list as one.
std::vector<PlacedKey> place_keys(const ConfigReading& config, const ConfigChange& change);

/// The keys in a line, with the names of files where the config has several.
std::string change_text(const ConfigReading& config, const std::vector<PlacedKey>& keys);

}  // namespace longspan
