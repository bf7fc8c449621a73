// Whether a plan's memory will do: the verdict that comes with every prediction.
//
// Arenas are exact, so the risk is memory besides them: context and libraries on the device,
// other processes' memory on the host. Where a profile has measured those, a plan fits or
// does not; where it assumes them, a plan that needs the last of a memory is at risk.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "hwprofiles/hardware_profile.h"
#include "planner/program/program.h"

namespace longspan {

/// What the arenas of one rank may hold on this hardware: a device's capacity minus what is
/// reserved, and the rank's share of its node's host memory and storage, as every device has a
/// rank.
std::array<int64_t, kTierCount> capacities(const HardwareProfile& hw);

enum class Fit { fits, at_risk, does_not_fit };
std::string_view name_of(Fit);  // "fits", "at risk", "does not fit"

struct FitVerdict {
  Fit fit = Fit::fits;
  std::string reason;  // of the tier with the least to spare, as a clause; empty: it fits
};

/// The verdict on arenas of `peak_bytes`. At risk: more than the capacity would be needed if what
/// is reserved on the device were twice what the profile assumes, or if the host kept a twentieth
/// of its memory to itself.
FitVerdict fit_of(const HardwareProfile& hw, const std::array<int64_t, kTierCount>& peak_bytes);

}  // namespace longspan
