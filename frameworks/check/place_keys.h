// The files, and the words in them, of a change's keys: how a user makes the change.
//
// Pure functions; safe from any thread.
#pragma once

#include <string>
#include <vector>

#include "frameworks/check/config_change.h"

namespace longspan {

/// "attention-config" of "attention-config.0.1", an element of a list; empty: the key is in no
/// list.
std::string list_of(const std::string& key);

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
