// Where hardware profiles come from: the built-in catalog, a YAML file, or `local`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan {

/// Names of the built-in profiles, sorted, without count prefixes ("h100-80g").
std::vector<std::string> hardware_names();

/// `reference` is a catalog name with optional counts ("h100-80g", "8xh100-80g", "2x8xa100-80g":
/// nodes x devices x device), a YAML file, or "local", likewise with counts. Devices of the cpu
/// backend are shares of one machine: its device memory is divided by their number. Throws
/// bad_input: unknown names list the nearest ones, "local" without a profile says to run
/// `longspan profile`.
HardwareProfile load_hardware(const std::string& reference);

/// Where `local` lives: $LONGSPAN_LOCAL_PROFILE, else $XDG_CONFIG_HOME/longspan/local.yaml, else
/// ~/.config/longspan/local.yaml.
std::filesystem::path local_profile_path();

HardwareProfile read_hardware(const YamlMap& yaml);
void write_hardware(YAML::Emitter& out, const HardwareProfile& hw);

}  // namespace longspan
