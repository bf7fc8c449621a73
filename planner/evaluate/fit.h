// The verdict on a plan's memory that comes with every prediction.
//
// Arenas are exact, so only other memory is uncertain: context and libraries on the device, other
// processes on the host. If the profile has measured it, a plan fits or does not fit. If the
// profile assumes it, a plan that needs nearly all of a memory is at risk.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "hwprofiles/hardware_profile.h"
#include "planner/program/program.h"

namespace longspan {

/// Bytes available to the arenas of one rank: a device's capacity minus the reserved bytes, and the
/// rank's share of its node's host memory and storage, with one rank per device.
std::array<int64_t, kTierCount> capacities(const HardwareProfile& hw);

enum class Fit { fits, at_risk, does_not_fit };
std::string_view name_of(Fit);  // "fits", "at risk", "does not fit"

struct FitVerdict {
  Fit fit = Fit::fits;
  std::string reason;  // about the tier that is short or at risk, as a clause; empty: it fits
};

/// The verdict on arenas of `peak_bytes`. At risk: they would exceed the capacity if the device
/// reserved twice the bytes that the profile assumes, or if other processes used a twentieth of the
/// host's memory.
FitVerdict fit_of(const HardwareProfile& hw, const std::array<int64_t, kTierCount>& peak_bytes);

}  // namespace longspan
