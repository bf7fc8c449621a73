#include "models/catalog.h"

#include <algorithm>
#include <span>

#include "base/embedded.h"
#include "base/file.h"
#include "base/nearest.h"
#include "models/model_kind.h"

namespace longspan {

/// The files of models/catalog, sorted; defined by a source that the build writes.
std::span<const EmbeddedFile> model_catalog_files();

namespace {

namespace fs = std::filesystem;

ModelSpec load_file(const fs::path& path) {
  const std::string text = read_file(path, kMostYamlBytes);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json =
      path.extension() == ".json" || (first != std::string::npos && text[first] == '{');
  if (json) {
    ModelSpec model = read_hf_config(text, path.string());
    // A config names at most the model's family; the name of its folder or file identifies the
    // model.
    std::error_code error;
    const fs::path whole = fs::absolute(path, error).lexically_normal();
    const fs::path own = path.filename() == "config.json" ? whole.parent_path() : whole.stem();
    if (!own.filename().empty()) model.name = own.filename().string();
    return model;
  }
  return read_model(YamlMap::parse(text, path.string()));
}

YamlMap parsed(const EmbeddedFile& file) {
  const YamlMap map =
      YamlMap::parse(std::string(file.text), "catalog model " + std::string(file.name));
  map.has("aliases");  // marks the key as known, though it is no part of the model
  return map;
}

// The file of the catalog with the name or alias `name`, also without the owner of a repository;
// null if not found.
const EmbeddedFile* find_in_catalog(const std::string& name) {
  const std::span<const EmbeddedFile> files = model_catalog_files();
  for (const EmbeddedFile& file : files) {
    if (is_same_name(file.name, name)) return &file;
  }
  for (const EmbeddedFile& file : files) {
    const YamlMap map = parsed(file);
    if (!map.has("aliases")) continue;
    for (const std::string& alias : map.texts("aliases")) {
      const std::string_view repository = std::string_view(alias).substr(alias.find('/') + 1);
      if (is_same_name(alias, name) || is_same_name(repository, name)) return &file;
    }
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : model_catalog_files()) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string hub_name(const std::string& name) {
  const EmbeddedFile* const file = find_in_catalog(name);
  if (file == nullptr) return name;
  const YamlMap map = parsed(*file);
  return map.has("aliases") ? map.texts("aliases").front() : name;
}

ModelSpec load_model(const std::string& reference) {
  for (const EmbeddedFile& file : model_catalog_files()) {
    if (file.name != reference) continue;
    return read_model(parsed(file));
  }
  std::error_code error;
  const fs::file_status status = fs::status(reference, error);
  if (fs::is_directory(status)) {
    const fs::path config = fs::path(reference) / "config.json";
    if (!fs::exists(config, error)) {
      throw bad_input("model {}: the folder has no config.json; expected a Hugging Face model",
                      reference);
    }
    return load_file(config);
  }
  if (fs::exists(status)) return load_file(reference);
  if (const EmbeddedFile* file = find_in_catalog(reference)) return read_model(parsed(*file));
  // The owner of a repository is no part of the name.
  const std::string name = reference.substr(reference.rfind('/') + 1);
  if (const std::string kind = kind_by_name(name); !kind.empty()) {
    throw bad_input("model \"{}\"{} is not predicted", reference, kind);
  }
  throw bad_input(
      "model \"{}\": neither a catalog name nor a file; give its config.json, or a name of "
      "`longspan models list`{}",
      reference, nearest_hint(name, model_names()));
}

}  // namespace longspan
