// Typed access to the fields of a Hugging Face config.json. Internal to models/.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"

namespace longspan::hf {

using Json = nlohmann::json;

inline std::string shown(const Json& value) {
  // Nested values are not printed: a hostile file can nest them deeper than the stack.
  if (value.is_object()) return "an object";
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

// Typed access to one JSON object. A null counts as absent, as in Transformers.
class Fields {
 public:
  Fields(const Json& json, std::string origin, std::string path = "")
      : json_(json), origin_(std::move(origin)), path_(std::move(path)) {}

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  bool has_key(const char* key) const { return json_.contains(key); }
  const Json& at(const char* key) const {
    if (!has(key)) throw bad_input("{}: {}{}: missing", origin_, path_, key);
    return json_[key];
  }
  Error error(const char* key, const std::string& what) const {
    return bad_input("{}: {}{}: {}", origin_, path_, key, what);
  }
  int64_t whole(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX} ||
        value.get<uint64_t>() == 0) {
      throw error(key, "expected a whole number > 0, got " + shown(value));
    }
    return value.get<int64_t>();
  }
  int64_t whole(const char* key, int64_t otherwise) const {
    return has(key) ? whole(key) : otherwise;
  }
  double real(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number() || !(value.get<double>() > 0)) {
      throw error(key, "expected a number > 0, got " + shown(value));
    }
    return value.get<double>();
  }
  double real(const char* key, double otherwise) const { return has(key) ? real(key) : otherwise; }
  /// A whole number that may be 0.
  int64_t count(const char* key, int64_t otherwise) const {
    if (!has(key)) return otherwise;
    return json_[key] == 0 ? 0 : whole(key);
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_[key].is_boolean()) {
      throw error(key, "expected true or false, got " + shown(json_[key]));
    }
    return json_[key].get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_[key].is_string()) throw error(key, "expected text, got " + shown(json_[key]));
    return json_[key].get<std::string>();
  }
  /// The fields of an object; none if it is absent.
  Fields object(const char* key) const {
    static const Json kNone = Json::object();
    const Json& value = has(key) ? json_[key] : kNone;
    if (!value.is_object()) throw error(key, "expected an object, got " + shown(value));
    return {value, origin_, path_ + key + "."};
  }
  bool empty() const { return json_.empty(); }

  /// Whether a setting of two spellings has the first, here, or the second, in `other`. Throws if
  /// it has both and they differ: versions of Transformers do not agree on which counts.
  bool is_first(const char* key, const Fields& other, const char* other_key) const {
    if (!has(key) || !other.has(other_key)) return !other.has(other_key);
    if (at(key) == other.at(other_key)) return true;
    throw error(key,
                fmt::format("{} contradicts {}{}: {}; expected one of them, or the same in both",
                            shown(at(key)), other.path_, other_key, shown(other.at(other_key))));
  }

 private:
  const Json& json_;
  std::string origin_;
  std::string path_;
};

}  // namespace longspan::hf
