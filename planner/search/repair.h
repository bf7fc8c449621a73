// Turns knobs of a candidate that does not fit until it does. Internal to planner/search.
//
// A repair takes, of all single steps (steps.h), the one that removes memory shortfall at the least
// cost in time, and so on until nothing is short. Live bytes, scaled by packing, tell what is
// short; sampled simulation tells the time of the steps that look best by bounds. A candidate that
// seems to fit is laid out. If it does not fit after all, the walk continues from there with the
// packing just measured.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/memory_margin.h"
#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

struct RepairEffort {
  int64_t work = 0;       ///< of the steps that are evaluated (SampledSimulation::work)
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
