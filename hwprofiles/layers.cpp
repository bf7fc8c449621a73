#include "hwprofiles/layers.h"

#include <algorithm>
#include <span>

#include "base/embedded.h"
#include "base/nearest.h"
#include "hwprofiles/catalog.h"

namespace longspan {

/// The files of hwprofiles/catalog, sorted; defined by sources that the build writes.
std::span<const EmbeddedFile> hardware_device_files();
std::span<const EmbeddedFile> hardware_node_files();

namespace {

using Files = std::span<const EmbeddedFile>;

std::vector<std::string> names_of(Files files) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : files) names.emplace_back(file.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<YamlMap> find_file(Files files, const std::string& name) {
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const EmbeddedFile& f) { return f.name == name; });
  if (file == files.end()) return std::nullopt;
  return YamlMap::parse(std::string(file->text), "catalog hardware " + name);
}

// The file that `key` of `asking` names.
YamlMap named_file(Files files, const YamlMap& asking, const std::string& key) {
  const std::string name = asking.text(key);
  if (auto file = find_file(files, name)) return *file;
  throw asking.error(key, "the catalog has no \"" + name.substr(0, 60) + "\" to take here" +
                              nearest_hint(name, names_of(files)));
}

// Adds what the last of `layers` is like, and what that is like, and so on.
void add_likes(Files files, Layers& layers) {
  while (layers.back().has("like")) {
    if (layers.size() > 8) throw layers.back().error("like", "expected an end to what it is like");
    layers.push_back(named_file(files, layers.back(), "like"));
  }
}

std::optional<Layers> layers_of(Files files, const std::string& name) {
  const auto file = find_file(files, name);
  if (!file) return std::nullopt;
  Layers layers{*file};
  add_likes(files, layers);
  return layers;
}

}  // namespace

std::vector<std::string> device_names() { return names_of(hardware_device_files()); }

std::vector<std::string> node_names() {
  std::vector<std::string> names = names_of(hardware_node_files());
  std::erase_if(names, [](const std::string& name) {
    return !layer_with(node_layers(name).value(), "device").has("device");
  });
  return names;
}

std::string node_of(const std::string& device) {
  return layer_with(device_layers(device).value(), "node").text("node");
}

const YamlMap& layer_with(const Layers& layers, const std::string& key) {
  const YamlMap* found = nullptr;
  for (const YamlMap& layer : layers) {
    // Every layer is asked, so that finish() knows the key in those that another one hides.
    if (layer.has(key) && (found == nullptr || (!found->has_map(key) && layer.has_map(key)))) {
      found = &layer;
    }
  }
  return found == nullptr ? layers.front() : *found;
}

std::optional<Layers> device_layers(const std::string& name) {
  return layers_of(hardware_device_files(), name);
}

std::optional<Layers> node_layers(const std::string& name) {
  return layers_of(hardware_node_files(), name);
}

Layers file_layers(const YamlMap& file) {
  Layers layers{file};
  add_likes(hardware_node_files(), layers);
  const YamlMap& naming = layer_with(layers, "device");
  if (naming.has("device") && !naming.has_map("device")) {
    Layers device{named_file(hardware_device_files(), naming, "device")};
    add_likes(hardware_device_files(), device);
    layer_with(device, "node");  // where it is usually found does not matter here
    layers.insert(layers.end(), device.begin(), device.end());
  }
  return layers;
}

YamlMap device_map(const std::string& device, const std::vector<std::string>& path,
                   const YamlMap& asking, const std::string& key) {
  const auto layers = device_layers(device);
  if (!layers) named_file(hardware_device_files(), asking, key);  // says what is there
  YamlMap at = layer_with(*layers, path.front());
  for (const std::string& step : path) at = at.map(step);
  return at;
}

}  // namespace longspan
