// Best-first branch and bound over the frames of a question: the only search there is.
//
// Frames wait in the order of their bounds. The most hopeful is relaxed (frame_choice.h), which
// tightens its bound; when it comes up again, the candidates near its best mixture are evaluated by
// the fast path. The best of those are laid out and simulated exactly; where packing loses more
// than was left, the frame is rounded again with less room. The search ends when no bound that is
// left beats the best by more than the gap asked for, or when its effort is spent; either way the
// least bound of all frames says how far from the best the answer can be.
//
// At the end the best is refined: knobs that the relaxation does not know (prefetch depth, offload
// window) and single steps of the others, by the fast path and then exactly.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/search/frame_choice.h"

namespace longspan {

/// How much a search may do. Each number is the point on tests/search/corpus.yaml after which more
/// of it finds nothing better by 0.1 %.
struct Effort {
  int64_t evaluations = 500;   ///< by the fast path, before refinement
  int64_t refinements = 240;   ///< by the fast path, around the best
  int exact = 24;              ///< layouts that may turn out not to fit, or not to be the best
  int attempts = 4;            ///< roundings of one frame, each with less room
};

struct Scored {
  Candidate candidate;
  Score score;
  double bound = 0;  ///< of its frame
  bool exact = false;
};

struct Found {
  std::optional<Scored> best;   ///< exact
  std::optional<Scored> nearest;  ///< what misses by least, where nothing fits
  std::vector<Scored> seen;     ///< what fits by the fast path or exactly
  double bound = 0;             ///< no candidate of the space is better than this, in the goal's measure
  /// The part by which a candidate of this measure may be beaten.
  double gap(double measure) const { return measure > bound ? 1 - bound / measure : 0; }
  bool proven_none = false;  ///< by bounds alone: no candidate fits
};

struct Wanted {
  Goal goal = Goal::fastest;
  double gap = 0.002;                 ///< asked for
  double most_seconds = 1e300;        ///< of a step
  bool nvme = true;                   ///< whether anything may go into a file
};

/// In the goal's measure: seconds per sequence, or the share of the tier that is used.
double measure_of(Goal goal, const Score& score, const TierBytes& limits);

Found best_first(Evaluator& evaluator, const std::vector<Candidate>& frames,
                 const SpaceOptions& options, const Wanted& wanted, const Effort& effort,
                 const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace longspan
