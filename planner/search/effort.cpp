#include "planner/search/effort.h"

#include <algorithm>

namespace longspan {
namespace {

// All of the effort is spent if kMuchToGain may be gained, less for less down to kLeastEffort for
// kLittleToGain, and at most kMostShare of it for more.
constexpr double kLittleToGain = 0.01, kMuchToGain = 0.055;
constexpr double kLeastEffort = 0.08, kMostShare = 1.5;

}  // namespace

double share_of_effort(const Wanted& wanted, double gain) {
  if (wanted.goal != Goal::fastest) return 1;
  if (wanted.thorough) return kMostShare;
  if (gain <= wanted.gap) return 0;
  const double slope = (1 - kLeastEffort) / (kMuchToGain - kLittleToGain);
  return std::clamp(kLeastEffort + slope * (gain - kLittleToGain), kLeastEffort, kMostShare);
}

}  // namespace longspan
