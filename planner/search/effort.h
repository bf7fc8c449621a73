// Limits on the work of a search. Internal to planner/search.
#pragma once

#include <cstddef>
#include <cstdint>

#include "planner/search/ranking.h"

namespace longspan {

/// tests/bench/search_bench measures the effect of each on the corpus.
struct Effort {
  int64_t evaluations = 400;              ///< sampled simulations of an exploration
  int64_t work = 60'000'000;              ///< their work (SampledSimulation::work)
  int64_t refinements = 4500;             ///< sampled simulations around the best of each start
  int64_t refinement_work = 105'000'000;  ///< work of refinements
  int starts = 8;                         ///< candidates of different layouts and kinds to refine
  int exact = 24;                  ///< layouts of candidates that do not fit, or are not the best
  int attempts = 4;                ///< roundings of one frame, each with less room
  int64_t exact_ops = 24'000'000;  ///< ops of all programs laid out
  size_t repaired = 4;             ///< candidates to repair if nothing fits
};

/// The part of an effort to spend. `gain`: the part of the time that may be gained, for
/// Goal::fastest; 0 where it is at most Wanted::gap.
double share_of_effort(const Wanted& wanted, double gain);

}  // namespace longspan
