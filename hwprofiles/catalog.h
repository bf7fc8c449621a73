// Loads and writes hardware profiles: from the built-in catalog, a YAML file, or `local`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// Names of the built-in devices and nodes, sorted ("h100-80g"; "dgx-h100"). A name is either a
/// device or a node. Nodes that are sold with different devices ("pcie4-server") are not listed:
/// naming the device selects such a node.
std::vector<std::string> device_names();
std::vector<std::string> node_names();

/// The usual node of `device`, one of device_names().
std::string node_of(const std::string& device);

/// Loads a profile. `reference` is a catalog name, a YAML file or "local", each with optional
/// counts:
///
///     h100-80g         one device, in its usual node
///     8xh100-80g       devices of one such node
///     64xh100-80g      devices of several nodes, if they fill whole nodes
///     2x8xh100-80g     nodes x devices
///     dgx-h100         the node with all its devices
///     4xdgx-h100       nodes; a node's name implies its number of devices
///     4x2xdgx-h100     nodes x devices
///     2xcluster.yaml   nodes from a file
///
/// A catalog name may be written in any way that is_same_name() accepts (RTX4090), or as an alias
/// (h100); the profile has the catalog's name.
///
/// A node of the catalog has a maximum number of devices, and more are refused. Devices of the cpu
/// backend are shares of one machine: any number is allowed, and divides its device memory. A file
/// holds a whole profile, or is a node that names the device it takes from the catalog (layers.h).
/// Throws bad_input: unknown names list the nearest ones, "local" without a profile suggests
/// `longspan profile`.
HardwareProfile load_hardware(const std::string& reference);
/// Loads several profiles, in order; each file of the catalog is read only once.
std::vector<HardwareProfile> load_hardware(const std::vector<std::string>& references);

/// The path of `local`: $LONGSPAN_LOCAL_PROFILE, else $XDG_CONFIG_HOME/longspan/local.yaml, else
/// ~/.config/longspan/local.yaml.
std::filesystem::path local_profile_path();

/// The YAML form of a profile of one layer, as in plans.
HardwareProfile read_hardware(const YamlMap& yaml);
void write_hardware(YAML::Emitter& out, const HardwareProfile& hw);
/// Writes the profile to a file atomically. Throws failed if it cannot be written.
void save_hardware(const std::filesystem::path& path, const HardwareProfile& hw);

}  // namespace longspan
