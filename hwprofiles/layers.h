// A profile is read from layers, so that no figure stands in two files.
//
// A layer is one YAML file. Of every top-level key (`device`, `host`, `rates`, ...) the first layer
// that has it gives the whole of it; a file that holds everything is a profile of one layer. The
// files of the catalog are layers of two sorts: a device (what is on its board) and a node (what
// the board is plugged into). Either may say `like: NAME` and then lists only what differs from
// that file, which becomes the layer below it. A device names the `node` it is found in, a node the
// `device` it is sold with, if it is sold with one. A device lists the `aliases` it also goes by.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/embedded.h"
#include "base/yaml.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

using Layers = std::vector<YamlMap>;  // the upper ones first, never empty

/// Files of the catalog, each parsed when it is first asked for: many devices take figures from the
/// same few. Lives as long as one question about the catalog; not thread-safe.
class CatalogFiles {
 public:
  /// Mappings returned for one file share the record of the keys asked for, so finish() refuses the
  /// keys that none of them was asked for.
  const YamlMap& parsed(const EmbeddedFile& file);

 private:
  std::map<const char*, YamlMap> maps_;  // by where the text begins
};

/// The first of `layers` that has a mapping at `key` (a node's `device` may be but a name), else
/// the first that has anything there, else the first of all, which then says that it is missing.
const YamlMap& layer_with(const Layers& layers, const std::string& key);

/// The layers of a file of the catalog, itself first, then what it is like; nothing if there is no
/// such file.
std::optional<Layers> device_layers(CatalogFiles& files, const std::string& name);
std::optional<Layers> node_layers(CatalogFiles& files, const std::string& name);

/// The device or node of the catalog that people mean by `name`: is_same_name() holds for its own
/// name or one of its aliases. Nothing if there is none.
std::optional<std::string> catalog_name(CatalogFiles& files, const std::string& name);

/// The layers of a node, the catalog's or a user's file: itself, what it is `like`, and the device
/// of the catalog that these name. A file that holds a whole profile is its only layer. Throws
/// bad_input if the catalog has no such files.
Layers file_layers(CatalogFiles& files, const YamlMap& file);

/// The mapping at `path` in a device of the catalog, such as {"rates", "gemm_nt"}. Throws
/// bad_input, at `key` of `asking`, if the catalog has no such device.
YamlMap device_map(CatalogFiles& files, const std::string& device,
                   const std::vector<std::string>& path, const YamlMap& asking,
                   const std::string& key);

/// Reads and validates the profile called `name`. Throws bad_input with file, line and key.
HardwareProfile read_layers(CatalogFiles& files, const Layers& layers, const std::string& name);

}  // namespace longspan
