#include "frameworks/files/settings.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

namespace longspan {
namespace {

// Replaces what JSON files have and YAML does not: comments and tabs, outside of strings. Lines
// stay.
std::string without_comments(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (quoted) {
      out += c;
      if (c == '\\' && next != '\0') out += text[++i];
      if (c == '"') quoted = false;
    } else if (c == '/' && next == '/') {
      while (i < text.size() && text[i] != '\n') ++i;
      out += '\n';
    } else if (c == '/' && next == '*') {
      const size_t end = text.find("*/", i + 2);
      for (; i < std::min(end, text.size()); ++i) out += text[i] == '\n' ? "\n" : "";
      ++i;
    } else {
      quoted = c == '"';
      out += c == '\t' || c == '\r' ? ' ' : c;
    }
  }
  return out;
}

bool is_json(const std::string& text) {
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    return c == '{' || c == '/';
  }
  return false;
}

class Flattener {
 public:
  Flattener(const std::string& origin, Settings& settings) : origin_(origin), settings_(settings) {}

  void flatten(const YAML::Node& node, const std::string& key, int depth) {
    const int64_t line = node.Mark().is_null() ? 0 : node.Mark().line + 1;
    if (depth > kMostLevels) throw bad_input("{}:{}: {}: nested too deeply", origin_, line, key);
    if (++count_ > kMostSettings)
      throw bad_input("{}: more than {} settings", origin_, kMostSettings);
    const auto below = [&](std::string_view name) { return Settings::key_below(key, name); };
    if (node.IsMap()) {
      // A merged mapping's keys come first, so that its own replace them.
      if (const YAML::Node merged = node["<<"]) flatten(merged, key, depth + 1);
      std::set<std::string> names;
      for (const auto& entry : node) {
        if (!entry.first.IsScalar()) {
          throw bad_input("{}:{}: expected a word as the key", origin_, line);
        }
        const std::string& name = entry.first.Scalar();
        if (name == "<<") continue;
        if (!names.insert(name).second) {
          throw bad_input("{}:{}: {}: the key is given twice; keep one", origin_,
                          entry.first.Mark().line + 1, below(name));
        }
        flatten(entry.second, below(name), depth + 1);
      }
    } else if (node.IsSequence()) {
      for (size_t i = 0; i < node.size(); ++i)
        flatten(node[i], below(std::to_string(i)), depth + 1);
    } else {
      const bool is_null = !node.IsDefined() || node.IsNull() || node.Scalar() == "None";
      settings_.set(key, {is_null ? "" : node.Scalar(), is_null, origin_, line, ""});
    }
  }

 private:
  const std::string& origin_;
  Settings& settings_;
  size_t count_ = 0;
};

std::optional<double> number_of(std::string text) {
  std::erase(text, '_');
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

// A flag's name: "--seq-length" is "seq_length". Dots stay.
std::string flag_name(std::string_view word) {
  while (word.starts_with('-')) word.remove_prefix(1);
  std::string name(word);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

bool is_flag(const ShellWord& word) {
  const std::string& t = word.text;
  return t.size() > 1 && t[0] == '-' && !number_of(t) && t != "--";
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return lower;
}

bool same_value(std::string_view a, std::string_view b) {
  const auto plain = [](std::string_view value) {
    const std::string word = lower_case(value);
    if (word == "yes" || word == "on" || word == "1") return std::string("true");
    if (word == "no" || word == "off" || word == "0") return std::string("false");
    return word;
  };
  return plain(a) == plain(b);
}

std::string Settings::key_below(const std::string& prefix, std::string_view name) {
  return prefix.empty() ? std::string(name) : fmt::format("{}.{}", prefix, name);
}

void Settings::set(const std::string& key, Setting setting) { settings_[key] = std::move(setting); }

void Settings::add(const Settings& other, const std::string& prefix) {
  for (const auto& [key, setting] : other.settings_) {
    set(key_below(prefix, key), setting);
  }
}

const Setting* Settings::find(const std::string& key) const {
  const auto it = settings_.find(key);
  if (it == settings_.end()) return nullptr;
  read_[key] = true;
  return &it->second;
}

bool Settings::has(const std::string& key) const { return find(key) != nullptr; }

Error Settings::error(const std::string& key, const std::string& what) const {
  const auto it = settings_.find(key);
  if (it == settings_.end()) return bad_input("{}: {}", key, what);
  const Setting& s = it->second;
  if (s.line == 0) return bad_input("{}: {}: {}", s.file, key, what);
  return bad_input("{}:{}: {}: {}", s.file, s.line, key, what);
}

Error Settings::unresolved(const std::string& key) const {
  const auto it = settings_.find(key);
  const std::string why = it == settings_.end() ? "" : it->second.unresolved;
  return error(key, "the value is not known without running the script: " + why);
}

std::optional<std::string> Settings::text(const std::string& key) const {
  const Setting* const s = find(key);
  if (s == nullptr || s->is_null || s->value == "auto") return std::nullopt;
  if (!s->unresolved.empty()) throw unresolved(key);
  return s->value;
}

std::optional<double> Settings::real(const std::string& key) const {
  const std::optional<std::string> value = text(key);
  if (!value) return std::nullopt;
  const std::optional<double> number = number_of(*value);
  if (!number) throw error(key, fmt::format("expected a number, got \"{}\"", *value));
  return number;
}

std::optional<int64_t> Settings::whole(const std::string& key) const {
  const std::optional<std::string> range = text(key);
  const size_t colon = range ? range->find(':') : std::string::npos;
  const bool is_one =
      colon != std::string::npos && range->substr(0, colon) == range->substr(colon + 1);
  const std::optional<double> number = is_one ? number_of(range->substr(0, colon)) : real(key);
  if (!number) return std::nullopt;
  constexpr double kMost = 9e15;  // doubles are exact up to it
  if (*number != std::floor(*number) || std::abs(*number) > kMost) {
    throw error(key, fmt::format("expected a whole number, got \"{}\"", *text(key)));
  }
  return static_cast<int64_t>(*number);
}

std::optional<bool> Settings::flag(const std::string& key) const {
  const std::optional<std::string> value = text(key);
  if (!value) return std::nullopt;
  if (same_value(*value, "true")) return true;
  if (same_value(*value, "false")) return false;
  throw error(key, fmt::format("expected true or false, got \"{}\"", *value));
}

std::vector<std::string> Settings::list(const std::string& key) const {
  std::vector<std::string> values;
  for (size_t i = 0;; ++i) {
    const std::string at = key_below(key, std::to_string(i));
    if (!has(at)) return values;
    values.push_back(text(at).value_or(""));
  }
}

std::vector<std::string> Settings::unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, setting] : settings_) {
    if (!read_.contains(key)) keys.push_back(key);
  }
  return keys;
}

Settings read_settings(const std::string& text, const std::string& origin) {
  YAML::Node node;
  try {
    node = YAML::Load(is_json(text) ? without_comments(text) : text);
  } catch (const YAML::Exception& e) {
    throw bad_input("{}:{}: {}", origin, e.mark.is_null() ? 0 : e.mark.line + 1, e.msg);
  }
  if (!node.IsMap()) throw bad_input("{}: expected a mapping of settings", origin);
  Settings settings;
  Flattener(origin, settings).flatten(node, "", 0);
  return settings;
}

namespace {

// The settings of a flag whose value is a JSON object; nothing for another value.
std::optional<Settings> json_of(const ShellWord& word, const std::string& origin) {
  const std::string& text = word.text;
  const bool is_object =
      text.starts_with("{") && text.ends_with("}") && text.find(':') != text.npos;
  if (!is_object || !word.unresolved.empty()) return std::nullopt;
  try {
    const Settings object = read_settings(text, origin);
    Settings read;
    for (auto [key, setting] : object.all()) {
      setting.line = word.line;
      read.set(key, setting);
    }
    return read.empty() ? std::nullopt : std::optional(read);
  } catch (const Error&) {
    return std::nullopt;  // a word in braces
  }
}

}  // namespace

Settings read_flags(const ShellCommand& command, size_t first, const std::string& origin) {
  Settings settings;
  const std::vector<ShellWord>& words = command.words;
  // A launcher's flags have one value at most: what follows may be the program.
  const auto is_program = [](const ShellWord& word) {
    return word.text == "-m" || word.text == "--module" || word.text.ends_with(".py");
  };
  // A launcher may itself be a module.
  const auto module = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
    return word.text.starts_with("torch.distributed.");
  });
  const size_t program = static_cast<size_t>(
      std::find_if(module == words.end() ? words.begin() : module, words.end(), is_program) -
      words.begin());
  const bool launched = program < words.size();
  const auto setting = [&](const ShellWord& at, std::string value) {
    return Setting{std::move(value), false, origin, at.line, at.unresolved};
  };
  // "name=value" is a setting of its own, also behind a flag that is only there or not.
  const auto is_setting = [](const ShellWord& word) {
    const size_t equals = word.text.find('=');
    return equals != std::string::npos && equals > 0 &&
           std::all_of(
               word.text.begin(), word.text.begin() + static_cast<ptrdiff_t>(equals),
               [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
  };
  for (size_t i = first; i < words.size(); ++i) {
    const ShellWord& word = words[i];
    const size_t equals = word.text.find('=');
    if (equals != std::string::npos && equals > 0) {
      std::string_view name(word.text.data(), equals);
      while (name.starts_with('+') || name.starts_with('~')) name.remove_prefix(1);
      ShellWord value = word;
      value.text = word.text.substr(equals + 1);
      if (const std::optional<Settings> object = json_of(value, origin)) {
        settings.add(*object, flag_name(name));
      } else {
        settings.set(flag_name(name), setting(word, value.text));
      }
      continue;
    }
    if (!is_flag(word)) continue;
    // "-m" and "-u" of Python.
    if (word.text.size() == 2 && i <= program && launched) continue;
    const std::string name = flag_name(word.text);
    std::vector<const ShellWord*> values;
    while (i + 1 < words.size() && !is_flag(words[i + 1]) && !is_setting(words[i + 1]) &&
           !(launched && i + 1 <= program && (is_program(words[i + 1]) || !values.empty())) &&
           (values.empty() ||
            (words[i + 1].text.find('=') == std::string::npos &&
             number_of(values[0]->text).has_value() == number_of(words[i + 1].text).has_value()))) {
      values.push_back(&words[++i]);
    }
    if (values.empty()) {
      settings.set(name, setting(word, "true"));
    } else if (const std::optional<Settings> object = json_of(*values[0], origin)) {
      settings.add(*object, name);
    } else {
      settings.set(name, setting(*values[0], values[0]->text));
    }
    for (size_t v = 0; values.size() > 1 && v < values.size(); ++v) {
      settings.set(name + "." + std::to_string(v), setting(*values[v], values[v]->text));
    }
  }
  return settings;
}

}  // namespace longspan
