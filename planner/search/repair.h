// From a candidate that does not fit to one like it that does. Internal to planner/search.
//
// Knob by knob the candidate is turned to the value that lowers its need: what it is short of, and,
// where time matters, what that costs. Live bytes say whether a step fits, as far as packing
// exceeds them; bounds say what it takes. What seems to fit is laid out. If it does not fit after
// all, the walk continues from there, knowing more of packing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/memory_margin.h"
#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

struct RepairEffort {
  int steps = 100;        ///< that are looked at
  int64_t work = 0;       ///< of those (SampledSimulation::work)
  int64_t exact_ops = 0;  ///< of all programs laid out
};

struct Repaired {
  std::optional<Scored> fits;  ///< exact, and in the ranking's measure better than was asked for
  std::vector<Scored> missed;  ///< laid out on the way, and too large or too slow
  int64_t exact_ops = 0;       ///< of programs laid out
};

/// `better_than`: a measure of Ranking::weighed(), which what would fit may not reach.
Repaired repaired(Evaluator& evaluator, const Ranking& ranking, MemoryMargin& margin,
                  const SpaceOptions& options, const Candidate& from, double better_than,
                  const RepairEffort& effort);

}  // namespace longspan
