// Best-first branch and bound over the frames of a question. All searches of the planner use it.
// Internal to planner/search.
//
// Frames are explored best first (exploration.h): for the fastest plan those without a pipeline,
// then those with one, each with its own effort, because the relaxation compares the two least
// well, and so that a question that excludes one of them explores no more of the other.
//
// At the end the best of several kinds are refined (refine.h): by knobs that the relaxation does
// not model, and by single steps of the others. The least bound of all frames tells how far the
// answer can be from the best.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "planner/search/effort.h"
#include "planner/search/memory_margin.h"
#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

struct Found {
  std::optional<Scored> best;     ///< exact; with its time if the goal or a limit needs it
  std::optional<Scored> nearest;  ///< the candidate with the least overflow, if nothing fits
  std::vector<Scored> fitting;    ///< all candidates found to fit, by sampled simulation or exactly
  double bound = 0;  ///< of all candidates, in the goal's measure; infinite: none can fit
};

/// Deterministic. REQUIRES: frames without a pipeline come first. `margin` may hold what earlier
/// searches of the question learned, and is updated. `progress` gets the number of evaluations
/// done, and the most there will be.
Found best_first(Evaluator& evaluator, MemoryMargin& margin, const std::vector<Candidate>& frames,
                 const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
                 const Progress& progress = {});

}  // namespace longspan
