// The settings of a user's configuration files, flat: "zero_optimization.offload_param.device" is
// "cpu". A framework's reader asks for the settings that it knows; unread() lists the rest.
//
// Values are kept as text, as different frameworks write the same value as a number, a word or a
// string. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "frameworks/files/shell.h"

namespace longspan {

/// The largest files that are read: settings in all, and levels of nesting.
inline constexpr size_t kMostSettings = 100'000;
inline constexpr int kMostLevels = 64;

struct Setting {
  std::string value;     // empty for nothing, an empty list or an empty mapping
  bool is_null = false;  // null, None, or nothing after the colon
  std::string file;      // where it stands
  int64_t line = 0;      // from 1; 0: not known
  /// Why the value is not known (shell.h); empty: it is.
  std::string unresolved;
  bool operator==(const Setting&) const = default;
};

/// Whether two values of a key are the same: case does not matter, and "true", "yes", "on", "1" are
/// one, as are "false", "no", "off", "0".
bool same_value(std::string_view a, std::string_view b);
/// The text in lower case.
std::string lower_case(std::string_view text);

class Settings {
 public:
  /// "prefix.name"; the name alone if the prefix is empty.
  static std::string key_below(const std::string& prefix, std::string_view name);

  /// Adds a setting; one of the same key is replaced.
  void set(const std::string& key, Setting setting);
  /// Adds all settings of another, their keys below `prefix` and a dot unless that is empty.
  void add(const Settings& other, const std::string& prefix = "");

  bool empty() const { return settings_.empty(); }
  const std::map<std::string, Setting>& all() const { return settings_; }

  // Reading marks a key as read. Nothing: the key is missing, null, or the word "auto". Throws
  // bad_input with file, line and key for a value of another kind, and for one that is not known.
  bool has(const std::string& key) const;  // also if it is null; does not throw
  std::optional<std::string> text(const std::string& key) const;
  /// Also "5e8", "1_000_000", and torchrun's range of a single number, "2:2".
  std::optional<int64_t> whole(const std::string& key) const;
  std::optional<double> real(const std::string& key) const;
  /// true, false, yes, no, on, off, 1, 0 in any case.
  std::optional<bool> flag(const std::string& key) const;
  /// The elements of a list: "key.0", "key.1", ...
  std::vector<std::string> list(const std::string& key) const;

  /// The keys that nothing has read, in their order.
  std::vector<std::string> unread() const;
  /// The bad_input error of a key: "ds.json:12: zero_optimization.stage: " and `what`.
  Error error(const std::string& key, const std::string& what) const;
  /// The error of a key whose value only running a script would tell.
  Error unresolved(const std::string& key) const;

 private:
  const Setting* find(const std::string& key) const;

  std::map<std::string, Setting> settings_;
  mutable std::map<std::string, bool> read_;
};

/// The settings of a YAML or JSON text; JSON may have comments and trailing commas. Throws
/// bad_input with `origin` and the line for text that is neither, for a document that is not a
/// mapping, for one with a key given twice, and for more than 100,000 settings, as aliases can make
/// of a few.
Settings read_settings(const std::string& text, const std::string& origin);

/// The settings of a TOML text. Throws bad_input with `origin` and the line for other text.
Settings read_toml(const std::string& text, const std::string& origin);

/// The flags of a command line: "--seq-length 4096", "--seq-length=4096", "--bf16" (true),
/// "--modules a b" (a list), "key=value" and "+key=value" (Hydra). Flags keep their dashes as
/// underscores without the leading ones: "seq_length". `first`: the index of the first word to
/// read.
Settings read_flags(const ShellCommand& command, size_t first, const std::string& origin);

}  // namespace longspan
