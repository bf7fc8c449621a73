// Estimates of a program's memory beyond its lower bounds. Internal to planner/search.
//
// Live bytes exceed the bounds, and packing adds to live bytes; both differ between layouts and
// kinds. The ratios seen so far tell how much room the next rounding leaves.
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

  /// The room, in terms of bounds, for a first rounding of `frame`; `room` if nothing is known.
  Room room_of(const Candidate& frame, Room room) const;
  /// `score` with the expected cost of packing added to its bytes.
  Score packed(const Candidate& c, Score score) const;

 private:
  BytesRatio packing_of(const Candidate& c) const;

  Evaluator& evaluator_;
  std::map<Kind, BytesRatio> packing_;  // the least seen
  std::map<LayoutKey, BytesRatio> packing_of_layout_;
  std::map<LayoutKey, BytesRatio> live_;  // the last seen
  BytesRatio last_live_;                  // the last seen, of any layout
};

}  // namespace longspan
