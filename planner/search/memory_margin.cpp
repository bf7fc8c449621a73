#include "planner/search/memory_margin.h"

#include <algorithm>

namespace longspan {
namespace {

constexpr double kPacked = 0.99;  // of the room that others needed: packing differs
// Packing is expected to add this part of what it adds to others of the layout, where a kind is not
// known.
constexpr double kUnknownPacking = 1.0 / 3;

}  // namespace

MemoryMargin::Times MemoryMargin::times(const TierBytes& more, const TierBytes& less) {
  Times times;
  for (int tier = 0; tier < kTierCount; ++tier) {
    const auto least = static_cast<double>(std::max<int64_t>(1, less[tier]));
    times[tier] = std::max(1.0, static_cast<double>(more[tier]) / least);
  }
  return times;
}

void MemoryMargin::learn_live(const Candidate& c, const TierBytes& live) {
  last_live_ = live_[layout_of(c)] = times(live, evaluator_.demand(c).peak_bytes());
}

void MemoryMargin::learn_packing(const Candidate& c, const TierBytes& live,
                                 const TierBytes& arenas) {
  const Times own = times(arenas, live);
  const auto keep_least = [&](auto& known, const auto& key) {
    Times& kept = known.try_emplace(key, own).first->second;
    for (int tier = 0; tier < kTierCount; ++tier) kept[tier] = std::min(kept[tier], own[tier]);
  };
  keep_least(packing_, kind_of(c));
  keep_least(packing_of_layout_, layout_of(c));
}

MemoryMargin::Times MemoryMargin::packing_of(const Candidate& c) const {
  const auto known = packing_.find(kind_of(c));
  if (known != packing_.end()) return known->second;
  Times packing;
  packing.fill(1);
  const auto alike = packing_of_layout_.find(layout_of(c));
  if (alike == packing_of_layout_.end()) return packing;
  for (int tier = 0; tier < kTierCount; ++tier) {
    packing[tier] += kUnknownPacking * (alike->second[tier] - 1);
  }
  return packing;
}

Room MemoryMargin::room_of(const Candidate& frame, Room room) const {
  if (live_.empty()) return room;
  const auto known = live_.find(layout_of(frame));
  const Times& live = known == live_.end() ? last_live_ : known->second;
  const Times packing = packing_of(frame);
  for (int tier = 0; tier < 2; ++tier) room[tier] = kPacked / (live[tier] * packing[tier]);
  return room;
}

Score MemoryMargin::packed(const Candidate& c, Score score) const {
  if (score.overflow > 0) return score;
  const Times packing = packing_of(c);
  for (int tier = 0; tier < kTierCount; ++tier) {
    const double bytes = packing[tier] * static_cast<double>(score.bytes[tier]);
    score.bytes[tier] = static_cast<int64_t>(bytes);
  }
  score.overflow = evaluator_.overflow(score.bytes);
  return score;
}

}  // namespace longspan
