// Where hardware profiles come from: the built-in catalog, a YAML file, or `local`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// Names of the built-in devices and nodes, sorted ("h100-80g"; "dgx-h100"). A name is one or the
/// other, never both. Nodes that are sold with different devices ("pcie4-server") are not among
/// them: such a node is had by naming the device.
std::vector<std::string> device_names();
std::vector<std::string> node_names();

/// The node that `device`, one of device_names(), is found in.
std::string node_of(const std::string& device);

/// `reference` is a name of the catalog with optional counts, a YAML file, or "local", likewise
/// with counts:
///
///     h100-80g         one device, in the node it is usually found in
///     8xh100-80g       devices of one such node
///     64xh100-80g      as many nodes as that takes, if it takes whole nodes
///     2x8xh100-80g     nodes x devices
///     dgx-h100         the node with all its devices
///     4xdgx-h100       nodes; a node's name already says how many devices it has
///     4x2xdgx-h100     nodes x devices
///     2xcluster.yaml   nodes, of a file
///
/// A name of the catalog may be written as is_same_name() takes it (RTX4090), and as an alias
/// (h100); the profile is then called as the catalog calls it.
///
/// A node of the catalog holds a number of devices, and more are refused; those of the cpu backend
/// are shares of one machine, any number of them, and its device memory is divided by it. A file
/// may hold the whole profile, or be a node that names what it takes from the catalog (layers.h).
/// Throws bad_input: unknown names list the nearest ones, "local" without a profile says to run
/// `longspan profile`.
HardwareProfile load_hardware(const std::string& reference);
/// The same of several, in their order; each file of the catalog is read once for all of them.
std::vector<HardwareProfile> load_hardware(const std::vector<std::string>& references);

/// Where `local` lives: $LONGSPAN_LOCAL_PROFILE, else $XDG_CONFIG_HOME/longspan/local.yaml, else
/// ~/.config/longspan/local.yaml.
std::filesystem::path local_profile_path();

/// A profile of one layer, as plans hold it and as write_hardware() writes it.
HardwareProfile read_hardware(const YamlMap& yaml);
void write_hardware(YAML::Emitter& out, const HardwareProfile& hw);
/// As a file of its own, whole or not at all. Throws failed where it cannot be written.
void save_hardware(const std::filesystem::path& path, const HardwareProfile& hw);

}  // namespace longspan
