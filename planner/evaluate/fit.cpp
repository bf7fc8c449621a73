#include "planner/evaluate/fit.h"

#include <fmt/format.h>

#include <cmath>

#include "base/units.h"

namespace longspan {
namespace {

constexpr double kHostShare = 0.05;  // part of the host's memory for other processes

// Whole bytes of a figure, not negative. Figures are doubles because they hold rates as well.
int64_t whole_bytes(double bytes) {
  if (!(bytes > 0)) return 0;
  constexpr double kMost = 9.2e18;  // just below 2^63
  return bytes < kMost ? static_cast<int64_t>(std::floor(bytes)) : static_cast<int64_t>(kMost);
}

bool measured(const Figure& figure) { return figure.source.starts_with("measured: "); }

// Bytes that a tier may need besides its arena, if the profile has not measured them.
std::array<int64_t, kTierCount> uncertain_bytes(const HardwareProfile& hw) {
  const auto per_node = static_cast<double>(hw.devices_per_node);
  std::array<int64_t, kTierCount> bytes{};
  if (!measured(hw.device.reserved_bytes)) {
    bytes[0] = static_cast<int64_t>(hw.device.reserved_bytes.value);
  }
  if (!measured(hw.host.memory_bytes)) {
    bytes[1] = static_cast<int64_t>(hw.host.memory_bytes.value * kHostShare / per_node);
  }
  return bytes;
}

}  // namespace

std::array<int64_t, kTierCount> capacities(const HardwareProfile& hw) {
  const auto per_node = static_cast<double>(hw.devices_per_node);
  return {whole_bytes(hw.device.memory_bytes.value - hw.device.reserved_bytes.value),
          whole_bytes(hw.host.memory_bytes.value / per_node),
          whole_bytes(hw.nvme.capacity_bytes.value / per_node)};
}

std::string_view name_of(Fit fit) {
  switch (fit) {
    case Fit::fits:
      return "fits";
    case Fit::at_risk:
      return "at risk";
    case Fit::does_not_fit:
      return "does not fit";
  }
  return "";
}

FitVerdict fit_of(const HardwareProfile& hw, const std::array<int64_t, kTierCount>& peak_bytes) {
  const std::array<int64_t, kTierCount> capacity = capacities(hw), uncertain = uncertain_bytes(hw);
  FitVerdict verdict;
  for (int i = 0; i < kTierCount; ++i) {
    const std::string_view tier = name_of(static_cast<Tier>(i));
    const int64_t left = capacity[i] - peak_bytes[i];
    if (left < 0) {
      return {Fit::does_not_fit,
              fmt::format("{} memory is short by {}", tier, format_bytes(-left))};
    }
    if (left < uncertain[i] && peak_bytes[i] > 0 && verdict.fit == Fit::fits) {
      verdict = {Fit::at_risk,
                 fmt::format("{} of {} memory are left, and {} may take up to {} more than assumed",
                             format_bytes(left), tier,
                             i == 0 ? "context and libraries" : "others on the host",
                             format_bytes(uncertain[i]))};
    }
  }
  return verdict;
}

}  // namespace longspan
