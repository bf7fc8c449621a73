// TOML settings, by toml++.
#include <toml++/toml.h>

#include <string>

#include "base/error.h"
#include "frameworks/files/settings.h"

namespace longspan {
namespace {

// toml++ refuses tables that are nested too deeply.
void flatten(const toml::node& node, const std::string& key, const std::string& origin,
             Settings& settings) {
  const auto below = [&](std::string_view name) { return Settings::key_below(key, name); };
  if (const toml::table* const table = node.as_table()) {
    for (const auto& [name, value] : *table) flatten(value, below(name.str()), origin, settings);
    return;
  }
  if (const toml::array* const array = node.as_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      flatten((*array)[i], below(std::to_string(i)), origin, settings);
    }
    return;
  }
  std::string text;
  if (const auto* const string = node.as_string()) {
    text = string->get();
  } else if (const auto* const whole = node.as_integer()) {
    text = std::to_string(whole->get());
  } else if (const auto* const real = node.as_floating_point()) {
    text = fmt::format("{}", real->get());
  } else if (const auto* const flag = node.as_boolean()) {
    text = flag->get() ? "true" : "false";
  }  // dates and times say nothing about a run
  settings.set(key, {text, false, origin, static_cast<int64_t>(node.source().begin.line), ""});
}

}  // namespace

Settings read_toml(const std::string& text, const std::string& origin) {
  Settings settings;
  try {
    flatten(toml::parse(text, origin), "", origin, settings);
  } catch (const toml::parse_error& e) {
    throw bad_input("{}:{}: {}", origin, e.source().begin.line, e.description());
  }
  return settings;
}

}  // namespace longspan
