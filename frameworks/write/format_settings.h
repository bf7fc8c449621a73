// The text of a file with flat settings: YAML, JSON, TOML or the flags of a command. Internal to
// frameworks/write.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace longspan {

/// Keys with dots and their values, in their order. "key.0" is an element of a list.
using FlatSettings = std::vector<std::pair<std::string, std::string>>;

/// A file of the format "yaml", "json" or "toml", which begins with `comment` where the format has
/// comments.
std::string format_settings(const FlatSettings& settings, const std::string& format,
                            const std::string& comment);

/// A command with flags on continued lines: "--seq-length 4096" for the format "flags",
/// "data.max_length=4096" for "hydra". Keys below "env." are variables in front.
std::string format_command(const std::string& command, const FlatSettings& settings,
                           const std::string& format);

}  // namespace longspan
