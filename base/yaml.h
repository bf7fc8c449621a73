// Typed, strict reading of YAML mappings, for every YAML file from a user.
//
// A YamlMap wraps one mapping node with its file and its path inside the file. Each getter checks
// presence, type and range and throws bad_input with one line such as
//   plan.yaml:12:3: strategy.chunk_tokens: expected a whole number > 0, got "-4"
// `finish()` refuses keys that were never read, with the nearest known key as a hint, so a typing
// error never silently becomes a default. Not thread-safe; cheap to copy.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace longspan {

/// Many times the largest profile or plan; the nodes of a text this long take some gigabytes at
/// worst.
inline constexpr int64_t kMostYamlBytes = int64_t{8} << 20;

class YamlMap {
 public:
  /// Parses `text`; `origin` names it in messages (usually a path). Malformed YAML throws bad_input
  /// with line and column; so does a document that is not a mapping.
  static YamlMap parse(const std::string& text, const std::string& origin);
  YamlMap(YAML::Node node, std::string origin, std::string path);

  /// This mapping with `defaults` below it: missing keys come from `defaults`, mappings in both are
  /// merged recursively, and an error names the place of the value. finish() checks the keys of
  /// both.
  YamlMap over(const YamlMap& defaults) const;
  /// The line of the file where the mapping begins, from 1; 0 if it has no file.
  int64_t line() const;

  bool has(const std::string& key) const;
  bool has_map(const std::string& key) const;      ///< the key exists and holds a mapping
  std::string text(const std::string& key) const;  ///< a non-empty scalar
  int64_t whole(const std::string& key, int64_t min, int64_t max = INT64_MAX) const;
  double real(const std::string& key, double min_exclusive = -1e300) const;  ///< finite
  bool flag(const std::string& key) const;
  YamlMap map(const std::string& key) const;
  std::vector<YamlMap> maps(const std::string& key) const;  ///< a sequence of mappings
  std::vector<double> reals(const std::string& key) const;  ///< a sequence of finite numbers
  std::vector<std::string> texts(const std::string& key) const;
  /// A sequence of sequences of exactly `columns` finite numbers, e.g. points: [[1, 2], [3, 4]].
  std::vector<std::vector<double>> rows(const std::string& key, size_t columns) const;

  template <class T>
  using Names = std::initializer_list<std::pair<std::string_view, T>>;
  /// One of a fixed set of words, e.g. one_of<Tier>("kv", {{"device", Tier::device}, ...}).
  template <class T>
  T one_of(const std::string& key, Names<T> names) const {
    const std::string word = text(key);
    std::string list;
    for (const auto& [name, value] : names) {
      if (name == word) return value;
      list += (list.empty() ? "" : ", ") + std::string(name);
    }
    throw error(key, "expected one of " + list + ", got \"" + word + "\"");
  }

  /// The keys of the mapping itself, in file order.
  std::vector<std::string> keys() const;
  /// Throws bad_input if the mapping has a key that no getter and no has() was called for.
  void finish() const;
  /// The bad_input error for `key`: origin, line, column, path and `what`.
  Error error(const std::string& key, const std::string& what) const;

 private:
  YAML::Node child(const std::string& key) const;  // throws if missing
  bool has_own(const std::string& key) const;

  YAML::Node node_;
  std::string origin_;
  std::string path_;
  std::shared_ptr<std::set<std::string>> known_ = std::make_shared<std::set<std::string>>();
  std::shared_ptr<const YamlMap> defaults_;
};

}  // namespace longspan
