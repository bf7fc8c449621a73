#include "hwprofiles/catalog.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/file.h"
#include "base/nearest.h"
#include "hwprofiles/layers.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

// The parts of "2x8xa100-80g": the counts from the left, and the name.
struct Reference {
  std::vector<std::string> counts;
  std::string name;
};

Reference take_apart(const std::string& text) {
  Reference reference;
  size_t start = 0;
  while (true) {
    size_t end = start;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    if (end == start || end >= text.size() || (text[end] != 'x' && text[end] != 'X')) break;
    reference.counts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  reference.name = text.substr(start);
  return reference;
}

std::string spelled(const Reference& reference) {
  std::string text;
  for (const std::string& count : reference.counts) text += count + "x";
  return text + reference.name;
}

int64_t parse_count(const std::string& text, const std::string& reference) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || end != text.data() + text.size() || count < 1) {
    throw bad_input("hardware \"{}\": expected counts > 0 before the name, got \"{}\"", reference,
                    text.substr(0, 60));
  }
  return count;
}

// The counts of a reference; 0 if not given.
struct Counts {
  int64_t nodes = 0;
  int64_t devices = 0;
};

// A single count means devices, or nodes if the name is a node's.
Counts parse_counts(const std::vector<std::string>& texts, const std::string& reference,
                    bool single_is_nodes) {
  if (texts.size() > 2) {
    throw bad_input("hardware \"{}\": expected at most two counts, nodes x devices x name",
                    reference);
  }
  Counts counts;
  if (texts.empty()) return counts;
  if (texts.size() == 2 || single_is_nodes) counts.nodes = parse_count(texts.front(), reference);
  if (texts.size() == 2 || !single_is_nodes) counts.devices = parse_count(texts.back(), reference);
  return counts;
}

void apply_counts(const Counts& counts, const std::string& reference, HardwareProfile& hw) {
  if (counts.nodes == 0 && counts.devices == 0) return;
  const int64_t before = hw.devices_per_node;
  if (counts.nodes > 0) hw.nodes = counts.nodes;
  if (counts.devices > 0) hw.devices_per_node = counts.devices;
  hw.name = reference;
  if (hw.device.backend == "cpu" && counts.devices > 0) {
    // The devices are shares of one machine.
    Figure& memory = hw.device.memory_bytes;
    memory.value = std::floor(memory.value * static_cast<double>(before) /
                              static_cast<double>(hw.devices_per_node));
    memory.source += fmt::format(", shared by {}", counts.devices);
  }
  validate(hw, "hardware \"" + reference + "\"");
}

HardwareProfile load_layers(CatalogFiles& files, const Layers& layers, const std::string& node,
                            Counts counts, const std::string& reference, const std::string& name) {
  HardwareProfile hw = read_layers(files, layers, name);
  if (hw.device.backend != "cpu" && counts.devices > hw.devices_per_node) {
    throw bad_input(
        "hardware \"{}\": expected at most {} devices, as many as a node {} has, got {}; for more "
        "give nodes x devices x name (2x{}x{})",
        reference, hw.devices_per_node, node, counts.devices, hw.devices_per_node, name);
  }
  apply_counts(counts, reference, hw);
  return hw;
}

std::optional<HardwareProfile> load_device(CatalogFiles& files, const Reference& parts,
                                           const std::string& reference) {
  auto layers = device_layers(files, parts.name);
  if (!layers) return std::nullopt;
  const std::string node = layer_with(*layers, "node").text("node");  // marks it as known
  const Layers below = node_layers(files, node).value();
  layer_with(below, "device");  // marks the key as known: another device may be named there
  layers->insert(layers->end(), below.begin(), below.end());
  Counts counts = parse_counts(parts.counts, reference, false);
  if (counts.devices == 0) counts.devices = 1;
  if (counts.nodes > 0) return load_layers(files, *layers, node, counts, reference, parts.name);
  // More devices than one node has fill whole nodes.
  const int64_t of_node = read_layers(files, *layers, parts.name).devices_per_node;
  const bool whole_nodes = counts.devices > of_node && counts.devices % of_node == 0;
  const bool is_cpu = layer_with(*layers, "device").map("device").text("backend") == "cpu";
  if (!whole_nodes || is_cpu) {
    return load_layers(files, *layers, node, counts, reference, parts.name);
  }
  counts = {counts.devices / of_node, of_node};
  return load_layers(files, *layers, node, counts,
                     fmt::format("{}x{}x{}", counts.nodes, counts.devices, parts.name), parts.name);
}

std::optional<HardwareProfile> load_node(CatalogFiles& files, const Reference& parts,
                                         const std::string& reference) {
  auto layers = node_layers(files, parts.name);
  if (!layers) return std::nullopt;
  if (!layer_with(*layers, "device").has("device")) {
    std::string devices;
    for (const std::string& device : device_names()) {
      if (node_of(device) == parts.name) devices += (devices.empty() ? "" : ", ") + device;
    }
    throw bad_input("hardware \"{}\": this node is sold with different devices; name one of {}",
                    reference, devices);
  }
  return load_layers(files, file_layers(files, layers->front()), parts.name,
                     parse_counts(parts.counts, reference, true), reference, parts.name);
}

HardwareProfile load_file(CatalogFiles& files, const fs::path& path) {
  const YamlMap yaml = YamlMap::parse(read_file(path, kMostYamlBytes), path.string());
  return read_layers(files, file_layers(files, yaml), yaml.text("name"));
}

// The value of an environment variable, or empty if it is unset.
std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

HardwareProfile load(CatalogFiles& files, std::string reference) {
  std::error_code error;
  Reference parts = take_apart(reference);
  if (!fs::exists(reference, error)) {
    if (const auto name = catalog_name(files, parts.name); name && *name != parts.name) {
      parts.name = *name;
      reference = spelled(parts);
    }
  }
  if (parts.name == "local") {
    const fs::path path = local_profile_path();
    if (!fs::exists(path, error)) {
      throw bad_input(
          "hardware \"local\": no profile of this machine at {}; run `longspan profile` to make it",
          path.string());
    }
    HardwareProfile hw = load_file(files, path);
    apply_counts(parse_counts(parts.counts, reference, false), reference, hw);
    return hw;
  }
  if (auto hw = load_device(files, parts, reference)) return *hw;
  if (auto hw = load_node(files, parts, reference)) return *hw;
  if (fs::exists(reference, error)) return load_file(files, reference);
  if (!parts.counts.empty() && fs::exists(parts.name, error)) {
    HardwareProfile hw = load_file(files, parts.name);
    parts.name = hw.name;
    apply_counts(parse_counts(parts.counts, reference, true), spelled(parts), hw);
    return hw;
  }
  std::vector<std::string> known = device_names();
  for (const std::string& name : node_names()) known.push_back(name);
  known.emplace_back("local");
  const std::string hint = nearest_hint(parts.name, known);
  throw bad_input("hardware \"{}\": neither a catalog name nor a file{}", reference,
                  hint.empty() ? "; `longspan hw list` shows the catalog" : hint);
}

}  // namespace

void save_hardware(const fs::path& path, const HardwareProfile& hw) {
  YAML::Emitter out;
  write_hardware(out, hw);
  write_file_atomically(path, std::string(out.c_str()) + "\n");
}

std::filesystem::path local_profile_path() {
  const std::string own = environment("LONGSPAN_LOCAL_PROFILE");
  if (!own.empty()) return own;
  const std::string config = environment("XDG_CONFIG_HOME");
  if (!config.empty()) return fs::path(config) / "longspan" / "local.yaml";
  const std::string home = environment("HOME");
  if (home.empty()) {
    throw bad_input(
        "hardware \"local\": HOME is not set; set LONGSPAN_LOCAL_PROFILE to the profile's path");
  }
  return fs::path(home) / ".config" / "longspan" / "local.yaml";
}

HardwareProfile load_hardware(const std::string& reference) {
  CatalogFiles files;
  return load(files, reference);
}

std::vector<HardwareProfile> load_hardware(const std::vector<std::string>& references) {
  CatalogFiles files;
  std::vector<HardwareProfile> profiles;
  profiles.reserve(references.size());
  for (const std::string& reference : references) profiles.push_back(load(files, reference));
  return profiles;
}

}  // namespace longspan
