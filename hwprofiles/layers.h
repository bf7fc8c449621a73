// Reads a profile from layers, so that no figure is in two files.
//
// A layer is one YAML file. The first layer that has a top-level key (`device`, `host`, `rates`,
// ...) gives its whole value; a file that holds everything is a profile of one layer. Layers of the
// catalog are of two kinds: a device (the parts on its board) and a node (the machine around the
// board). Either may have `like: NAME` and then lists only its differences from that file, which
// becomes the layer below. A device names its usual `node`, a node the `device` it is sold with, if
// any. A device lists its `aliases`.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/embedded.h"
#include "base/yaml.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

using Layers = std::vector<YamlMap>;  // from top to bottom, never empty

/// Files of the catalog, each parsed on first use, as many devices take figures from the same few
/// files. Lives as long as one query of the catalog; not thread-safe.
class CatalogFiles {
 public:
  /// All mappings returned for a file share the record of keys read, so finish() refuses only keys
  /// that were read from none of them.
  const YamlMap& parsed(const EmbeddedFile& file);

 private:
  std::map<const char*, YamlMap> maps_;  // by the address of the text
};

/// The first of `layers` with a mapping at `key` (a node's `device` may be only a name), else the
/// first with any value there, else the top layer, whose getter then reports the key as missing.
const YamlMap& layer_with(const Layers& layers, const std::string& key);

/// The layers of a file of the catalog: itself, then the files it is `like`; none if there is no
/// such file.
std::optional<Layers> device_layers(CatalogFiles& files, const std::string& name);
std::optional<Layers> node_layers(CatalogFiles& files, const std::string& name);

/// The device or node of the catalog that `name` refers to: is_same_name() holds for its name or
/// one of its aliases. None if there is no match.
std::optional<std::string> catalog_name(CatalogFiles& files, const std::string& name);

/// The layers of a node from the catalog or a user's file: itself, the files it is `like`, and the
/// device of the catalog that they name. A file with a whole profile is its only layer. Throws
/// bad_input if the catalog does not have these files.
Layers file_layers(CatalogFiles& files, const YamlMap& file);

/// The mapping at `path` in a device of the catalog, such as {"rates", "gemm_nt"}. Throws
/// bad_input, at `key` of `asking`, if the catalog does not have the device.
YamlMap device_map(CatalogFiles& files, const std::string& device,
                   const std::vector<std::string>& path, const YamlMap& asking,
                   const std::string& key);

/// Reads and validates the profile `name`. Throws bad_input with file, line and key.
HardwareProfile read_layers(CatalogFiles& files, const Layers& layers, const std::string& name);

}  // namespace longspan
