#include "frameworks/read/config_file.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "frameworks/files/python.h"
#include "frameworks/files/shell.h"

namespace longspan {
namespace {

bool begins_as_json(const std::string& text) {
  const size_t at = text.find_first_not_of(" \t\r\n");
  return at != std::string::npos && text[at] == '{';
}

std::string joined(const ShellCommand& command) {
  std::string words;
  for (const ShellWord& word : command.words) words += (words.empty() ? "" : " ") + word.text;
  return words;
}

bool has_flags(const ShellCommand& command) {
  return std::any_of(command.words.begin(), command.words.end(), [](const ShellWord& word) {
    return (word.text.starts_with("-") && word.text.size() > 1) ||
           word.text.find('=') != std::string::npos;
  });
}

std::vector<ConfigCommand> commands_of(const ConfigText& file,
                                       const std::vector<ShellCommand>& all) {
  std::vector<ConfigCommand> commands;
  // A script that only starts a program with a config may have no flags.
  const bool any = std::any_of(all.begin(), all.end(), has_flags);
  for (const ShellCommand& command : all) {
    if (any && !has_flags(command)) continue;
    // A file of flags alone has no program.
    const size_t first = command.words[0].text.starts_with("-") ? 0 : 1;
    ConfigCommand read{joined(command), read_flags(command, first, file.name)};
    for (const auto& [name, word] : command.environment) {
      read.settings.set("env." + name, {word.text, false, file.name, word.line, word.unresolved});
    }
    commands.push_back(std::move(read));
  }
  return commands;
}

// Whether settings are those of a Hugging Face config.json.
bool is_model_config(const Settings& settings) {
  const auto& all = settings.all();
  const bool named = all.contains("model_type") || all.contains("architectures.0");
  return named && (all.contains("hidden_size") || all.contains("n_embd") ||
                   all.contains("num_hidden_layers") || all.contains("n_layer"));
}

}  // namespace

ConfigFile read_config_file(const ConfigText& file) {
  ConfigFile read;
  read.name = file.name;
  read.text = file.text;
  if (file.text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw bad_input("{}: the file is empty", file.name);
  }
  const std::string ending = std::filesystem::path(file.name).extension().string();
  if (ending == ".toml") {
    read.settings = read_toml(file.text, file.name);
  } else if (ending == ".py") {
    read.settings = read_python(file.text, file.name);
  } else if (ending == ".yaml" || ending == ".yml" || ending == ".json" ||
             begins_as_json(file.text)) {
    read.settings = read_settings(file.text, file.name);
    read.is_model = is_model_config(read.settings);
  } else {
    ShellScript script = read_shell(file.text, file.name);
    read.commands = commands_of(file, script.commands);
    read.written = std::move(script.files);
    if (read.commands.empty()) {
      throw bad_input("{}: no command; expected YAML, JSON, TOML or a launch script", file.name);
    }
  }
  return read;
}

}  // namespace longspan
