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

}  // namespace longspan
