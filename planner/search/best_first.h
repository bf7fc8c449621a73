// Best-first branch and bound over the frames of a question. All searches of the planner use it.
// Internal to planner/search.
//
// Frames are queued by expected value. The best is relaxed (frame_choice.h), which gives a lower
// bound for all of its candidates. When it comes up again, the candidates near its best mixture are
// evaluated by sampled simulation, with less room as long as they do not fit. The best of those are
// laid out and simulated exactly. The search ends when no remaining bound beats the best by more
// than the requested gap, or when its effort is spent. In both cases the least bound of all frames
// tells how far the answer can be from the best.
//
// Expectations decide the order, bounds decide when to stop. At the end the best is refined
// (refine.h): by knobs that the relaxation does not model, and by single steps of the others.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "planner/search/memory_margin.h"
#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

/// Limits on the work of a search. tests/bench/search_bench measures the effect of each on the
/// corpus.
struct Effort {
  int64_t evaluations = 400;              ///< sampled simulations before refinement
  int64_t work = 60'000'000;              ///< their work (SampledSimulation::work)
  int64_t refinements = 4500;             ///< sampled simulations around the best of each start
  int64_t refinement_work = 105'000'000;  ///< work of refinements
  int starts = 8;                         ///< candidates of different layouts and kinds to refine
  int exact = 24;                  ///< layouts of candidates that do not fit, or are not the best
  int attempts = 4;                ///< roundings of one frame, each with less room
  int64_t exact_ops = 24'000'000;  ///< ops of all programs laid out
  size_t repaired = 4;             ///< candidates to repair if nothing fits
};

struct Found {
  std::optional<Scored> best;     ///< exact; with its time if the goal or a limit needs it
  std::optional<Scored> nearest;  ///< the candidate with the least overflow, if nothing fits
  std::vector<Scored> fitting;    ///< all candidates found to fit, by sampled simulation or exactly
  double bound = 0;  ///< of all candidates, in the goal's measure; infinite: none can fit
};

/// Deterministic. `margin` may hold what earlier searches of the question learned, and is updated.
/// `progress` gets the number of evaluations done, and the most there will be.
Found best_first(Evaluator& evaluator, MemoryMargin& margin, const std::vector<Candidate>& frames,
                 const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
                 const Progress& progress = {});

}  // namespace longspan
