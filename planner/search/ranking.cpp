#include "planner/search/ranking.h"

#include <algorithm>

namespace longspan {
namespace {

// The gain that justifies the use of a file, of nearly all of a memory, or of all of the device's
// or of the host's memory instead of none. Gains below the prediction's error are worth none of
// these.
constexpr double kWorthNvme = 0.01;
constexpr double kWorthRisk = 0.002;
constexpr double kWorthMemory = 0.001;

}  // namespace

double measure_of(Goal goal, const Score& score, const TierBytes& limits) {
  if (goal == Goal::fastest) return score.seconds;
  double most = 0;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (goal == Goal::least_device && tier != 0) continue;
    if (goal == Goal::least_host && tier != 1) continue;
    most = std::max(most, static_cast<double>(score.bytes[tier]) /
                              std::max(1.0, static_cast<double>(limits[tier])));
  }
  return most;
}

double Ranking::weighed(const Score& score) const {
  double measure = measure_of(wanted_.goal, score, evaluator_.limits());
  if (wanted_.goal != Goal::fastest) return measure;
  if (score.bytes[static_cast<int>(Tier::nvme)] > 0) measure *= 1 + kWorthNvme;
  if (evaluator_.at_risk(score.bytes)) measure *= 1 + kWorthRisk;
  for (const Tier tier : {Tier::device, Tier::host}) {
    const int at = static_cast<int>(tier);
    const auto limit = static_cast<double>(std::max<int64_t>(1, evaluator_.limits()[at]));
    measure *= 1 + kWorthMemory * static_cast<double>(score.bytes[at]) / limit;
  }
  return measure;
}

Score Ranking::memory_alone(const TierBytes& bytes) const {
  Score score;
  score.bytes = bytes;
  score.overflow = evaluator_.overflow(bytes);
  return score;
}

Score Ranking::estimate(const Candidate& c) const {
  return needs_time() ? evaluator_.fast(c) : memory_alone(evaluator_.live(c));
}

Score Ranking::exact(const Candidate& c) const {
  return needs_time() ? evaluator_.exact(c) : memory_alone(evaluator_.arenas(c));
}

}  // namespace longspan
