#include "planner/search/memory_margin.h"

#include <algorithm>

namespace longspan {
namespace {

constexpr double kPacked = 0.99;  // part of the room by known ratios, as packing differs
// For an unknown kind, packing is expected to add this part of its addition for others of the
// layout.
constexpr double kUnknownPacking = 1.0 / 3;

}  // namespace

void MemoryMargin::learn_live(const Candidate& c, const TierBytes& live) {
  last_live_ = live_[layout_of(c)] = {live, evaluator_.demand(c, DemandOf::bytes).peak_bytes()};
}

void MemoryMargin::learn_packing(const Candidate& c, const TierBytes& live,
                                 const TierBytes& arenas) {
  const BytesRatio own(arenas, live);
  packing_.try_emplace(kind_of(c), own).first->second.lower_to(own);
  packing_of_layout_.try_emplace(layout_of(c), own).first->second.lower_to(own);
}

BytesRatio MemoryMargin::packing_of(const Candidate& c) const {
  const auto known = packing_.find(kind_of(c));
  if (known != packing_.end()) return known->second;
  const auto alike = packing_of_layout_.find(layout_of(c));
  if (alike != packing_of_layout_.end()) return alike->second.damped(kUnknownPacking);
  return {};
}

Room MemoryMargin::room_of(const Candidate& frame, Room room) const {
  if (live_.empty()) return room;
  const auto known = live_.find(layout_of(frame));
  const BytesRatio& live = known == live_.end() ? last_live_ : known->second;
  const BytesRatio packing = packing_of(frame);
  for (int tier = 0; tier < 2; ++tier) room[tier] = kPacked / (live[tier] * packing[tier]);
  return room;
}

Score MemoryMargin::packed(const Candidate& c, Score score) const {
  if (score.overflow > 0) return score;
  score.bytes = packing_of(c).of(score.bytes);
  score.overflow = evaluator_.overflow(score.bytes);
  return score;
}

}  // namespace longspan
