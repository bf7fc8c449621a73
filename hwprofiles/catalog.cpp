#include "hwprofiles/catalog.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <span>

#include "base/embedded.h"
#include "base/file.h"
#include "base/nearest.h"

namespace longspan {

/// The files of hwprofiles/catalog, sorted; defined by a source that the build writes.
std::span<const EmbeddedFile> hardware_catalog_files();

namespace {

namespace fs = std::filesystem;

// "2x8xa100-80g" taken apart: the counts from the left, and the name.
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
    if (end == start || end >= text.size() || text[end] != 'x') break;
    reference.counts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  reference.name = text.substr(start);
  return reference;
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

void apply_counts(const std::vector<std::string>& counts, const std::string& reference,
                  HardwareProfile& hw) {
  if (counts.empty()) return;
  if (counts.size() > 2) {
    throw bad_input("hardware \"{}\": expected at most two counts, nodes x devices x name",
                    reference);
  }
  const int64_t before = hw.devices_per_node;
  hw.devices_per_node = parse_count(counts.back(), reference);
  if (counts.size() == 2) hw.nodes = parse_count(counts.front(), reference);
  hw.name = reference;
  if (hw.device.backend == "cpu") {
    // The devices are shares of one machine.
    Figure& memory = hw.device.memory_bytes;
    memory.value = std::floor(memory.value * static_cast<double>(before) /
                              static_cast<double>(hw.devices_per_node));
    memory.source += ", shared by " + counts.back();
  }
  validate(hw, "hardware \"" + reference + "\"");
}

std::optional<HardwareProfile> load_from_catalog(const std::string& reference) {
  const Reference parts = take_apart(reference);
  const auto files = hardware_catalog_files();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const EmbeddedFile& f) { return f.name == parts.name; });
  if (file == files.end()) return std::nullopt;
  HardwareProfile hw =
      read_hardware(YamlMap::parse(std::string(file->text), "catalog hardware " + parts.name));
  apply_counts(parts.counts, reference, hw);
  return hw;
}

HardwareProfile load_file(const fs::path& path) {
  return read_hardware(YamlMap::parse(read_file(path), path.string()));
}

// The value of an environment variable, or empty if it is unset.
std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

}  // namespace

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : hardware_catalog_files()) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
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
  std::error_code error;
  const Reference parts = take_apart(reference);
  if (parts.name == "local") {
    const fs::path path = local_profile_path();
    if (!fs::exists(path, error)) {
      throw bad_input(
          "hardware \"local\": no profile of this machine at {}; run `longspan profile` to make it",
          path.string());
    }
    HardwareProfile hw = load_file(path);
    apply_counts(parts.counts, reference, hw);
    return hw;
  }
  if (auto hw = load_from_catalog(reference)) return *hw;
  if (fs::exists(reference, error)) return load_file(reference);
  std::vector<std::string> known = hardware_names();
  known.emplace_back("local");
  const std::string hint = nearest_hint(parts.name, known);
  throw bad_input("hardware \"{}\": neither a catalog name nor a file{}", reference,
                  hint.empty() ? "; `longspan hw list` shows the catalog" : hint);
}

}  // namespace longspan
