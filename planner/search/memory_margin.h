// What programs need beyond what bounds see of their memory. Internal to planner/search.
//
// Live bytes exceed the bounds, and packing adds to live bytes; both differ from layout to layout
// and from kind to kind. What was seen says how much room the next rounding has to leave.
#pragma once

#include <map>

#include "planner/evaluate/bytes_ratio.h"
#include "planner/evaluate/evaluator.h"
#include "planner/search/frame_choice.h"
#include "planner/search/kinds.h"

namespace longspan {

class MemoryMargin {
 public:
  /// `evaluator` must outlive this object.
  explicit MemoryMargin(Evaluator& evaluator) : evaluator_(evaluator) {}

  void learn_live(const Candidate& c, const TierBytes& live);
  void learn_packing(const Candidate& c, const TierBytes& live, const TierBytes& arenas);

  /// The room that a first rounding of `frame` leaves its bounds; `room` where nothing is known.
  Room room_of(const Candidate& frame, Room room) const;
  /// An estimate with what packing adds to its bytes.
  Score packed(const Candidate& c, Score score) const;

 private:
  BytesRatio packing_of(const Candidate& c) const;

  Evaluator& evaluator_;
  std::map<Kind, BytesRatio> packing_;  // the least that was seen
  std::map<LayoutKey, BytesRatio> packing_of_layout_;
  std::map<LayoutKey, BytesRatio> live_;  // the last
  BytesRatio last_live_;                  // of any layout
};

}  // namespace longspan
