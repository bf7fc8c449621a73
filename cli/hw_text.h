// A hardware profile as text and as JSON.
#pragma once

#include "cli/documents.h"
#include "hwprofiles/hardware_profile.h"

namespace longspan::cli {

/// Every figure with its source, then the rate tables' ranges, on standard output.
void print_hardware(const HardwareProfile& hw);
Json hardware_json(const HardwareProfile& hw);

}  // namespace longspan::cli
