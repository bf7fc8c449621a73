#include "frameworks/knobs/framework.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <span>

#include "base/embedded.h"
#include "base/nearest.h"
#include "base/yaml.h"
#include "frameworks/files/settings.h"

namespace longspan {

/// The files of frameworks/catalog and frameworks/blocks, sorted; defined by sources that the build
/// writes.
std::span<const EmbeddedFile> framework_files();
std::span<const EmbeddedFile> framework_block_files();

namespace {

const RunKnobRow& knob_of(const YamlMap& yaml, const std::string& at, const std::string& name) {
  const RunKnobRow* const row = find_run_knob(name);
  if (row != nullptr) return *row;
  std::vector<std::string> names;
  for (const RunKnobRow& known : run_knob_rows()) names.emplace_back(known.name);
  throw yaml.error(at, "no knob \"" + name + "\"" + nearest_hint(name, names));
}

// Compiled-in files may have anchors and aliases, which files of users may not.
YamlMap trusted(const EmbeddedFile& file, const std::string& origin) {
  return YamlMap(YAML::Load(std::string(file.text)), origin, "");
}

// {knob: value, ...}, every value allowed.
KnobValues read_values(const YamlMap& yaml) {
  KnobValues values;
  RunKnobs checked;
  for (const std::string& knob : yaml.keys()) {
    knob_of(yaml, knob, knob);
    values.emplace_back(knob, yaml.text(knob));
    try {
      checked.set(knob, values.back().second);
    } catch (const Error& e) {
      throw yaml.error(knob, e.what());
    }
  }
  yaml.finish();
  return values;
}

// A word, or a list of them.
std::vector<std::string> read_words(const YamlMap& yaml, const std::string& key) {
  try {
    return yaml.texts(key);
  } catch (const Error&) {
    return {yaml.text(key)};
  }
}

KnobCondition read_condition(const YamlMap& yaml) {
  KnobCondition condition;
  if (!yaml.has("when")) return condition;
  const YamlMap when = yaml.map("when");
  for (const std::string& knob : when.keys()) {
    const RunKnobRow& row = knob_of(when, knob, knob);
    condition[knob] = read_words(when, knob);
    for (const std::string& value : condition[knob]) {
      if (value == "unset" || (value == ">1" && row.kind == RunKnobKind::count)) continue;
      try {
        RunKnobs().set(row.name, value);
      } catch (const Error& e) {
        throw when.error(knob, e.what());
      }
    }
  }
  when.finish();
  return condition;
}

FrameworkKey read_key(const YamlMap& yaml, const std::string& name, const std::string& at) {
  FrameworkKey key;
  key.key = Settings::key_below(at, name);
  if (yaml.has("also")) {
    for (const std::string& other : read_words(yaml, "also")) {
      key.also.push_back(Settings::key_below(at, other));
    }
  }
  if (yaml.has("sets")) key.sets = knob_of(yaml, "sets", yaml.text("sets")).name;
  if (yaml.has("adds")) {
    const RunKnobRow& row = knob_of(yaml, "adds", yaml.text("adds"));
    if (row.kind != RunKnobKind::count) throw yaml.error("adds", "expected a knob that is a count");
    key.sets = row.name;
    key.adds = true;
    key.write = false;
  }
  if (yaml.has("values")) {
    const YamlMap values = yaml.map("values");
    for (const std::string& value : values.keys()) {
      if (values.has_map(value)) {
        key.values.emplace_back(value, read_values(values.map(value)));
      } else if (key.sets.empty()) {
        throw values.error(value, "expected the knobs that it sets");
      } else {
        key.values.emplace_back(value, KnobValues{{key.sets, values.text(value)}});
      }
    }
    values.finish();
  }
  if (yaml.has("default")) key.standard = yaml.text("default");
  key.when = read_condition(yaml);
  if (yaml.has("each")) key.each = yaml.flag("each");
  if (yaml.has("file")) key.file = yaml.text("file");
  if (yaml.has("write")) key.write = yaml.flag("write") && !key.adds;
  yaml.finish();
  if (key.sets.empty() && key.values.empty() && key.file.empty()) {
    throw yaml.error("sets", name + ": expected sets, values or file");
  }
  return key;
}

// The part that a framework and a block have in common, below `at`; `block` is empty for a
// framework.
void read_shared(const YamlMap& yaml, const std::string& at, const std::string& block,
                 Framework& framework) {
  const bool own = block.empty();
  if (yaml.has("keys")) {
    const YamlMap keys = yaml.map("keys");
    std::set<std::string> names;
    for (const std::string& name : keys.keys()) {
      if (!names.insert(name).second) throw keys.error(name, "given twice");
      // One row, or several that apply in turn.
      const std::vector<YamlMap> rows =
          keys.has_map(name) ? std::vector{keys.map(name)} : keys.maps(name);
      for (const YamlMap& row : rows) {
        framework.keys.push_back(read_key(row, name, at));
        framework.keys.back().own = own;
        // A launch line says these itself.
        if (block == "launcher") framework.keys.back().write = false;
      }
    }
    keys.finish();
  }
  if (yaml.has("other")) {
    for (const std::string& pattern : yaml.texts("other")) {
      framework.other.push_back(Settings::key_below(at, pattern));
    }
  }
  if (yaml.has("rules")) {
    for (const YamlMap& rule : yaml.maps("rules")) {
      framework.rules.push_back({read_condition(rule), rule.text("expect"), rule.text("says")});
      rule.finish();
    }
  }
  if (yaml.has("terms")) {
    for (const YamlMap& terms : yaml.maps("terms")) {
      const KnobCondition when = read_condition(terms);
      for (const std::string& name : terms.keys()) {
        if (name == "when") continue;
        Stack stack;
        term_of(stack, name);  // throws for an unknown one
        const YamlMap term = terms.map(name);
        framework.terms.push_back({when, name, {term.real("value"), term.text("source"), {}}});
        term.finish();
      }
      terms.finish();
    }
  }
}

void read_block(const std::string& name, const std::string& at, Framework& framework) {
  for (const EmbeddedFile& file : framework_block_files()) {
    if (file.name != name) continue;
    const YamlMap yaml = trusted(file, "block " + name);
    yaml.text("name");
    for (const char* word : {"version", "source", "about"}) yaml.has(word);
    FrameworkPart part{at, name, {}};
    if (yaml.has("marks")) part.marks = yaml.texts("marks");
    framework.parts.push_back(part);
    read_shared(yaml, at, name, framework);
    yaml.finish();
    return;
  }
  throw bad_input("block \"{}\": unknown", name);
}

Framework read_framework(const YamlMap& yaml) {
  Framework framework;
  framework.name = yaml.text("name");
  framework.version = yaml.text("version");
  framework.about = yaml.text("about");
  yaml.has("source");
  if (yaml.has("programs")) framework.programs = yaml.texts("programs");
  if (yaml.has("marks")) framework.marks = yaml.texts("marks");
  if (yaml.has("started_by")) {
    const YamlMap programs = yaml.map("started_by");
    for (const std::string& program : programs.keys()) {
      framework.started_by.emplace_back(program, read_values(programs.map(program)));
    }
    programs.finish();
  }
  if (yaml.has("knobs")) framework.knobs = read_values(yaml.map("knobs"));
  if (yaml.has("stack")) framework.stacks.emplace_back(KnobCondition{}, yaml.text("stack"));
  if (yaml.has("stacks")) {
    for (const YamlMap& stack : yaml.maps("stacks")) {
      framework.stacks.emplace_back(read_condition(stack), stack.text("stack"));
      stack.finish();
    }
  }
  if (yaml.has("models")) {
    const YamlMap models = yaml.map("models");
    for (const std::string& model : models.keys()) framework.models[model] = models.text(model);
    models.finish();
  }
  if (yaml.has("includes")) {
    for (const std::string& block : yaml.texts("includes")) read_block(block, "", framework);
  }
  if (yaml.has("parts")) {
    for (const YamlMap& part : yaml.maps("parts")) {
      read_block(part.text("block"), part.text("at"), framework);
      part.finish();
    }
  }
  read_shared(yaml, "", "", framework);
  // Files of blocks that are no part of it, as a launcher names.
  std::erase_if(framework.keys, [&](const FrameworkKey& key) {
    const bool is_part = std::any_of(framework.parts.begin(), framework.parts.end(),
                                     [&](const FrameworkPart& p) { return p.block == key.file; });
    return !key.file.empty() && key.file != "own" && !is_part;
  });
  // An own key is written in place of one of the same name.
  for (FrameworkKey& key : framework.keys) {
    key.write = key.write && (key.own || std::none_of(framework.keys.begin(), framework.keys.end(),
                                                      [&](const FrameworkKey& other) {
                                                        return other.own && other.key == key.key;
                                                      }));
  }
  if (yaml.has("search")) {
    const YamlMap search = yaml.map("search");
    for (const std::string& knob : search.keys()) {
      knob_of(search, knob, knob);
      framework.search.emplace_back(knob, read_words(search, knob));
    }
    search.finish();
  }
  if (yaml.has("files")) {
    for (const YamlMap& file : yaml.maps("files")) {
      framework.files.push_back(
          {file.text("name"), file.text("format"), file.has("at") ? file.text("at") : "",
           file.has("launch") ? file.text("launch") : "", read_condition(file)});
      file.finish();
    }
  }
  if (yaml.has("writes")) {
    for (const YamlMap& write : yaml.maps("writes")) {
      framework.writes.push_back({write.text("key"), write.text("value"), read_condition(write)});
      write.finish();
    }
  }
  yaml.finish();
  return framework;
}

}  // namespace

std::vector<std::string> framework_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : framework_files()) names.emplace_back(file.name);
  return names;
}

std::vector<std::string> written_framework_names() {
  // Every command's help asks for them, and to parse all files would take a third of a second.
  std::vector<std::string> names;
  for (const EmbeddedFile& file : framework_files()) {
    if (std::string_view(file.text).find("\nfiles:") != std::string_view::npos) {
      names.emplace_back(file.name);
    }
  }
  return names;
}

const Framework& load_framework(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Framework>> loaded;
  const std::scoped_lock lock(mutex);
  if (const auto it = loaded.find(name); it != loaded.end()) return *it->second;
  for (const EmbeddedFile& file : framework_files()) {
    if (file.name != name) continue;
    const YamlMap yaml = trusted(file, "framework " + name);
    return *loaded.emplace(name, std::make_unique<const Framework>(read_framework(yaml)))
                .first->second;
  }
  std::string names;
  for (const std::string& known : framework_names()) names += (names.empty() ? "" : ", ") + known;
  throw bad_input("framework \"{}\": unknown{}; known: {}", name,
                  nearest_hint(name, framework_names()), names);
}

bool knows(const Framework& framework, std::string_view key) {
  const auto is_key = [&](const FrameworkKey& known) {
    return matches(known.key, key) ||
           std::any_of(known.also.begin(), known.also.end(),
                       [&](const std::string& other) { return matches(other, key); });
  };
  return std::any_of(framework.keys.begin(), framework.keys.end(), is_key) ||
         std::any_of(framework.other.begin(), framework.other.end(),
                     [&](const std::string& pattern) { return matches(pattern, key); });
}

bool matches(std::string_view pattern, std::string_view key) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == key;
  if (!key.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t at = star; at <= key.size(); ++at) {
    if (matches(rest, key.substr(at))) return true;
  }
  return false;
}

}  // namespace longspan
