#include "frameworks/write/format_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

namespace longspan {
namespace {

// A mapping, a list or a value.
struct SettingNode {
  std::string value;
  std::vector<std::pair<std::string, std::unique_ptr<SettingNode>>> below;

  SettingNode& at(const std::string& name) {
    for (auto& [known, node] : below) {
      if (known == name) return *node;
    }
    below.emplace_back(name, std::make_unique<SettingNode>());
    return *below.back().second;
  }
  bool is_list() const {
    return !below.empty() && std::all_of(below.begin(), below.end(), [](const auto& entry) {
      return entry.first.find_first_not_of("0123456789") == std::string::npos;
    });
  }
};

std::unique_ptr<SettingNode> tree_of(const FlatSettings& settings) {
  auto root = std::make_unique<SettingNode>();
  for (const auto& [key, value] : settings) {
    SettingNode* node = root.get();
    for (size_t at = 0; at <= key.size();) {
      const size_t dot = std::min(key.find('.', at), key.size());
      node = &node->at(key.substr(at, dot - at));
      at = dot + 1;
    }
    node->value = value;
  }
  return root;
}

bool is_plain(const std::string& value) {
  if (value == "true" || value == "false" || value == "null") return true;
  double number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, problem] = std::from_chars(value.data(), end, number);
  return problem == std::errc() && stop == end && value.find_first_of("xXnN") == std::string::npos;
}

std::string quoted(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + "\"";
}

std::string yaml_value(const std::string& value) {
  const bool safe = !value.empty() &&
                    value.find_first_of(":#{}[]&*!|>'\"%@`,") == std::string::npos &&
                    value.front() != ' ' && value.back() != ' ' && value.front() != '-';
  return safe || is_plain(value) ? value : quoted(value);
}

void put_yaml(const SettingNode& node, size_t indent, std::string& out) {
  const std::string margin(indent, ' ');
  const bool list = node.is_list();
  for (const auto& [name, below] : node.below) {
    out += margin + (list ? "-" : name + ":");
    if (below->below.empty()) {
      out += " " + yaml_value(below->value) + "\n";
    } else {
      out += "\n";
      put_yaml(*below, indent + 2, out);
    }
  }
}

void put_json(const SettingNode& node, size_t indent, std::string& out) {
  if (node.below.empty()) {
    out += is_plain(node.value) ? node.value : quoted(node.value);
    return;
  }
  const bool list = node.is_list();
  out += list ? "[\n" : "{\n";
  for (size_t i = 0; i < node.below.size(); ++i) {
    const auto& [name, below] = node.below[i];
    out += std::string(indent + 2, ' ') + (list ? "" : quoted(name) + ": ");
    put_json(*below, indent + 2, out);
    out += i + 1 < node.below.size() ? ",\n" : "\n";
  }
  out += std::string(indent, ' ') + (list ? "]" : "}");
}

std::string toml_value(const SettingNode& node) {
  if (node.below.empty()) return is_plain(node.value) ? node.value : quoted(node.value);
  std::string list;
  for (const auto& [name, below] : node.below) {
    list += (list.empty() ? "" : ", ") + toml_value(*below);
  }
  return "[" + list + "]";
}

void put_toml(const SettingNode& node, const std::string& path, std::string& out) {
  const auto is_table = [](const SettingNode& n) { return !n.below.empty() && !n.is_list(); };
  const bool any = std::any_of(node.below.begin(), node.below.end(),
                               [&](const auto& entry) { return !is_table(*entry.second); });
  if (!path.empty() && any) out += fmt::format("\n[{}]\n", path);
  for (const auto& [name, below] : node.below) {
    if (!is_table(*below)) out += fmt::format("{} = {}\n", name, toml_value(*below));
  }
  for (const auto& [name, below] : node.below) {
    if (is_table(*below)) put_toml(*below, path.empty() ? name : path + "." + name, out);
  }
}

std::string shell_word(const std::string& value) {
  const bool safe =
      value.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,/:@%") ==
      std::string::npos;
  return safe && !value.empty() ? value : "'" + value + "'";
}

}  // namespace

std::string format_settings(const FlatSettings& settings, const std::string& format,
                            const std::string& comment) {
  const std::unique_ptr<SettingNode> root = tree_of(settings);
  std::string out;
  if (format == "json") {
    put_json(*root, 0, out);
    return (root->below.empty() ? "{}" : out) + "\n";
  }
  if (!comment.empty()) out = "# " + comment + "\n";
  if (format == "toml") {
    put_toml(*root, "", out);
  } else {
    put_yaml(*root, 0, out);
  }
  return out;
}

std::string format_command(const std::string& command, const FlatSettings& settings,
                           const std::string& format) {
  std::string environment, flags;
  const std::string between = " \\\n  ";
  for (const auto& [key, value] : settings) {
    if (key.starts_with("env.")) {
      environment += key.substr(4) + "=" + shell_word(value) + " ";
      continue;
    }
    if (format == "hydra") {
      flags += between + shell_word(key + "=" + value);
      continue;
    }
    if (value == "false") continue;
    // "key.0", "key.1": values of one flag.
    const size_t dot = key.rfind('.');
    const bool element = dot != std::string::npos && dot + 1 < key.size() &&
                         key.find_first_not_of("0123456789", dot + 1) == std::string::npos;
    if (element && key.substr(dot) != ".0") {
      flags += " " + shell_word(value);
      continue;
    }
    std::string flag = element ? key.substr(0, dot) : key;
    if (format == "flags") std::replace(flag.begin(), flag.end(), '_', '-');
    flags += between + "--" + flag + (value == "true" ? "" : " " + shell_word(value));
  }
  return environment + command + flags + "\n";
}

}  // namespace longspan
