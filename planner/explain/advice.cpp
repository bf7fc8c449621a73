#include "planner/explain/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/units.h"
#include "planner/evaluate/bytes_ratio.h"
#include "planner/program/layout.h"
#include "planner/program/ops_estimate.h"
#include "planner/strategy/validity.h"

namespace longspan {
namespace {

// Layouts tried for one advice: at most this number, or more if they have few ops together, which
// takes half a second.
constexpr size_t kTries = 6;
constexpr int64_t kOpsOfTries = 500'000;

// The first tier whose limit is exceeded, or the device.
Tier short_tier(const TierBytes& bytes, const TierBytes& limits) {
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (bytes[tier] > limits[tier]) return static_cast<Tier>(tier);
  }
  return Tier::device;
}

}  // namespace

std::optional<Change> change_that_fits(Evaluator& evaluator, const Candidate& c,
                                       const TierBytes& limits, std::string_view skip) {
  struct Bounded {
    Neighbour neighbour;
    double seconds;
    bool likely;  // it fits by samples
  };
  std::vector<Bounded> bounded;
  const ModelSpec model = evaluator.request(c).model;
  // The sums of a pipeline differ from layouts by more than packing, in ways that knobs change.
  const BytesRatio packing = is_one_program(model, c.strategy)
                                 ? BytesRatio(evaluator.arenas(c), evaluator.live(c))
                                 : BytesRatio();
  const auto with = [&](const Strategy& strategy) {
    Candidate changed = c;
    changed.strategy = strategy;
    return changed;
  };
  for (Neighbour& n : neighbours(c.strategy, c.sequence, limits[kNvmeTier] > 0)) {
    if (n.knob == skip || !is_valid(n.strategy, model, c.sequence)) continue;
    const Candidate changed = with(n.strategy);
    if (!evaluator.takes(changed)) continue;
    if (ops_estimate(evaluator.request(changed)) > kMostListedOps) continue;
    const Demand demand = evaluator.demand(changed);
    if (!fits_within(demand.peak_bytes(), limits)) continue;
    const auto sequences = static_cast<double>(micro_batches_of_step(changed));
    const bool likely = fits_within(packing.of(evaluator.live(changed)), limits);
    bounded.push_back({std::move(n), demand.step_seconds() / sequences, likely});
  }
  std::stable_sort(bounded.begin(), bounded.end(), [](const Bounded& a, const Bounded& b) {
    return std::pair(!a.likely, a.seconds) < std::pair(!b.likely, b.seconds);
  });
  size_t tries = 0;
  int64_t ops = 0;
  for (Bounded& one : bounded) {
    const Candidate changed = with(one.neighbour.strategy);
    ops += ops_estimate(evaluator.request(changed));
    if (ops > kOpsOfTries && !(one.likely && tries < kTries)) break;
    ++tries;
    const TierBytes bytes = evaluator.arenas(changed);
    if (fits_within(bytes, limits)) return Change{std::move(one.neighbour), bytes};
  }
  return std::nullopt;
}

std::string text_of(const Change& change, Tier tier) {
  return fmt::format("set {} to {} ({} {})", change.neighbour.knob, change.neighbour.to,
                     name_of(tier), format_bytes(change.bytes[static_cast<size_t>(tier)]));
}

namespace {

// The bytes as text, rounded up, so that a machine with what the text says has enough.
std::string at_least(int64_t bytes) {
  constexpr int64_t kMostRead = int64_t{1} << 49;
  std::string text = format_bytes(bytes);
  for (int64_t more = bytes; bytes < kMostRead && parse_bytes(text, "a capacity") < bytes;) {
    more += more / 1024 + 1;
    text = format_bytes(more);
  }
  return text;
}

}  // namespace

std::string capacity_for(const TierBytes& bytes, const TierBytes& limits) {
  std::string text;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (bytes[tier] <= limits[tier]) continue;
    const std::string needed = at_least(bytes[tier]), present = format_bytes(limits[tier]);
    const bool looks_equal = format_bytes(bytes[tier]) == present;
    const std::string_view name = name_of(static_cast<Tier>(tier));
    if (!text.empty()) text += " and ";
    if (limits[tier] == 0) {
      text += fmt::format("{} of {} memory", needed, name);
    } else if (looks_equal) {
      text += fmt::format("{} more of {} memory than {}", at_least(bytes[tier] - limits[tier]),
                          name, present);
    } else {
      text += fmt::format("{} of {} memory instead of {}", needed, name, present);
    }
  }
  return text;
}

std::string advice_for(Evaluator& evaluator, const Candidate& refused) {
  const TierBytes bytes = evaluator.arenas(refused);
  const TierBytes& limits = evaluator.limits();
  if (fits_within(bytes, limits)) return "";
  if (const auto change = change_that_fits(evaluator, refused, limits)) {
    return text_of(*change, short_tier(bytes, limits));
  }
  return capacity_for(bytes, limits);
}

std::string capacity_advice_for(Evaluator& evaluator, const Candidate& refused) {
  const TierBytes bytes = evaluator.arenas(refused);
  TierBytes limits = evaluator.limits();
  std::string text = capacity_for(bytes, limits);
  if (text.empty() || limits[kNvmeTier] > 0) return text;
  limits[kNvmeTier] = std::numeric_limits<int64_t>::max();
  const auto change = change_that_fits(evaluator, refused, limits);
  if (!change || change->bytes[kNvmeTier] == 0) return text;
  return fmt::format("{}, or {} of nvme for {}: {}", text, format_bytes(change->bytes[kNvmeTier]),
                     change->neighbour.knob, change->neighbour.to);
}

}  // namespace longspan
