// Best-first branch and bound over the frames of a question: the only search there is.
//
// Frames wait in the order of what is expected of them. The most hopeful is relaxed
// (frame_choice.h), which gives a lower bound for all of its candidates; when it comes up again,
// the candidates near its best mixture are evaluated by sampled simulation, with less room as long
// as they do not fit. The best of those are laid out and simulated exactly. The search ends when no
// bound that is left beats the best by more than the gap asked for, or when its effort is spent;
// either way the least bound of all frames says how far from the best the answer can be.
//
// Expectations decide what is looked at first, bounds when to stop. At the end the best is refined:
// knobs that the relaxation does not know, and single steps of the others (refine.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "planner/search/memory_margin.h"
#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

/// How much a search may do; tests/bench/search_bench shows what each buys on the corpus.
struct Effort {
  int64_t evaluations = 400;             ///< by sampled simulation, before refinement
  int64_t work = 60'000'000;             ///< of those (SampledSimulation::work)
  int64_t refinements = 3000;            ///< by sampled simulation, around the best of each start
  int64_t refinement_work = 70'000'000;  ///< of those
  int starts = 8;                  ///< candidates of different layouts and kinds that are refined
  int exact = 24;                  ///< candidates laid out that do not fit, or are not the best
  int attempts = 4;                ///< roundings of one frame, each with less room
  int64_t exact_ops = 24'000'000;  ///< of all programs laid out
  size_t repaired = 4;             ///< candidates that are turned knob by knob where nothing fits
};

struct Found {
  std::optional<Scored> best;     ///< exact; its time where the goal, or a limit, asks for it
  std::optional<Scored> nearest;  ///< what misses by least, where nothing fits
  std::vector<Scored> fitting;    ///< all that was found to fit, by sampled simulation or exactly
  double bound = 0;  ///< no candidate is better, in the goal's measure; infinite: none can fit
};

/// Deterministic. `margin` may know what earlier searches of the question saw, and learns more.
/// `progress` is told of evaluations, done and at most to do.
Found best_first(Evaluator& evaluator, MemoryMargin& margin, const std::vector<Candidate>& frames,
                 const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
                 const Progress& progress = {});

}  // namespace longspan
