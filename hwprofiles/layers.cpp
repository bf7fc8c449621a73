#include "hwprofiles/layers.h"

#include <algorithm>
#include <span>

#include "base/nearest.h"
#include "hwprofiles/catalog.h"

namespace longspan {

/// The files of hwprofiles/catalog, sorted; defined by sources that the build writes.
std::span<const EmbeddedFile> hardware_device_files();
std::span<const EmbeddedFile> hardware_node_files();

namespace {

using Folder = std::span<const EmbeddedFile>;

std::vector<std::string> names_of(Folder folder) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : folder) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<YamlMap> find_file(CatalogFiles& files, Folder folder, const std::string& name) {
  const auto file = std::find_if(folder.begin(), folder.end(),
                                 [&](const EmbeddedFile& f) { return f.name == name; });
  if (file == folder.end()) return std::nullopt;
  return files.parsed(*file);
}

// The file named by `key` of `asking`.
YamlMap named_file(CatalogFiles& files, Folder folder, const YamlMap& asking,
                   const std::string& key) {
  const std::string name = asking.text(key);
  if (auto file = find_file(files, folder, name)) return *file;
  throw asking.error(key, "the catalog has no \"" + name.substr(0, 60) + "\" to take here" +
                              nearest_hint(name, names_of(folder)));
}

// Adds the file that the last of `layers` is `like`, and so on recursively.
void add_likes(CatalogFiles& files, Folder folder, Layers& layers) {
  while (layers.back().has("like")) {
    if (layers.size() > 8) throw layers.back().error("like", "expected an end to what it is like");
    layers.push_back(named_file(files, folder, layers.back(), "like"));
  }
}

std::optional<Layers> layers_of(CatalogFiles& files, Folder folder, const std::string& name) {
  const auto file = find_file(files, folder, name);
  if (!file) return std::nullopt;
  Layers layers{*file};
  add_likes(files, folder, layers);
  return layers;
}

// Recursive, because assigning to a YAML::Node changes all copies of it.
YamlMap map_at(const YamlMap& map, std::span<const std::string> path) {
  return path.empty() ? map : map_at(map.map(path.front()), path.subspan(1));
}

}  // namespace

const YamlMap& CatalogFiles::parsed(const EmbeddedFile& file) {
  const auto known = maps_.find(file.text.data());
  if (known != maps_.end()) return known->second;
  const std::string origin = "catalog hardware " + std::string(file.name);
  const YamlMap& map =
      maps_.emplace(file.text.data(), YamlMap::parse(std::string(file.text), origin)).first->second;
  map.has("aliases");  // marks the key as known, though it is no part of a profile
  return map;
}

std::vector<std::string> device_names() { return names_of(hardware_device_files()); }

std::vector<std::string> node_names() {
  std::vector<std::string> names = names_of(hardware_node_files());
  CatalogFiles files;
  std::erase_if(names, [&](const std::string& name) {
    return !layer_with(node_layers(files, name).value(), "device").has("device");
  });
  return names;
}

std::string node_of(const std::string& device) {
  CatalogFiles files;
  return layer_with(device_layers(files, device).value(), "node").text("node");
}

const YamlMap& layer_with(const Layers& layers, const std::string& key) {
  const YamlMap* found = nullptr;
  for (const YamlMap& layer : layers) {
    // Calls has() on every layer, so that finish() knows the key also in layers that are hidden.
    if (layer.has(key) && (found == nullptr || (!found->has_map(key) && layer.has_map(key)))) {
      found = &layer;
    }
  }
  return found == nullptr ? layers.front() : *found;
}

std::optional<Layers> device_layers(CatalogFiles& files, const std::string& name) {
  return layers_of(files, hardware_device_files(), name);
}

std::optional<Layers> node_layers(CatalogFiles& files, const std::string& name) {
  return layers_of(files, hardware_node_files(), name);
}

std::optional<std::string> catalog_name(CatalogFiles& files, const std::string& name) {
  const auto is_named = [&](std::string_view known) { return is_same_name(known, name); };
  for (const Folder folder : {hardware_device_files(), hardware_node_files()}) {
    for (const EmbeddedFile& file : folder) {
      if (is_named(file.name)) return std::string(file.name);
    }
  }
  for (const EmbeddedFile& file : hardware_device_files()) {
    const YamlMap& map = files.parsed(file);
    if (!map.has("aliases")) continue;
    const std::vector<std::string> aliases = map.texts("aliases");
    if (std::any_of(aliases.begin(), aliases.end(), is_named)) return std::string(file.name);
  }
  return std::nullopt;
}

Layers file_layers(CatalogFiles& files, const YamlMap& file) {
  Layers layers{file};
  add_likes(files, hardware_node_files(), layers);
  const YamlMap& naming = layer_with(layers, "device");
  if (naming.has("device") && !naming.has_map("device")) {
    Layers device{named_file(files, hardware_device_files(), naming, "device")};
    add_likes(files, hardware_device_files(), device);
    layer_with(device, "node");  // marks the key as known: the device's usual node is not used here
    layers.insert(layers.end(), device.begin(), device.end());
  }
  return layers;
}

YamlMap device_map(CatalogFiles& files, const std::string& device,
                   const std::vector<std::string>& path, const YamlMap& asking,
                   const std::string& key) {
  const auto layers = device_layers(files, device);
  if (!layers) named_file(files, hardware_device_files(), asking, key);  // throws
  return map_at(layer_with(*layers, path.front()), path);
}

}  // namespace longspan
