// Turns knobs of a candidate that does not fit until it does. Internal to planner/search.
//
// Knob by knob, the value is taken that lowers a weighted sum of the memory shortfall and, if time
// matters, of time. Live bytes, scaled by packing, tell whether a step fits; bounds tell its time.
// A candidate that seems to fit is laid out. If it does not fit after all, the walk continues from
// there with the packing just measured.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/memory_margin.h"
#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

struct RepairEffort {
  int steps = 100;        ///< evaluated steps
  int64_t work = 0;       ///< their work (SampledSimulation::work)
  int64_t exact_ops = 0;  ///< ops of all programs laid out
};

struct Repaired {
  std::optional<Scored> fits;  ///< exact, and better than `better_than` in the ranking's measure
  std::vector<Scored> missed;  ///< candidates laid out on the way that are too large or too slow
  int64_t exact_ops = 0;       ///< ops of programs laid out
};

/// Gives up when a candidate's Ranking::weighed() reaches `better_than`.
Repaired repaired(Evaluator& evaluator, const Ranking& ranking, MemoryMargin& margin,
                  const SpaceOptions& options, const Candidate& from, double better_than,
                  const RepairEffort& effort);

}  // namespace longspan
