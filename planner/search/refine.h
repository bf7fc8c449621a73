// Local search around a plan, for effects that the relaxation does not model. Internal to
// planner/search.
//
// The relaxation works with bounds, so almost any knob can improve its best plan a little. From an
// exactly evaluated plan, every single step of one knob is evaluated by sampled simulation. The
// most promising steps are tried in pairs, because one may free the memory that another needs.
// Frames next to the plan's are rounded with the room that it turned out to have. Sampled results
// are corrected by their error for the plan itself. The best is laid out and simulated, and the
// search continues from there until nothing helps.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

/// Limits on the work of a refinement.
struct RefineEffort {
  int64_t evaluations = 600;      ///< sampled simulations
  int64_t work = INT64_MAX;       ///< their work (SampledSimulation::work)
  int exact = 12;                 ///< layouts of candidates that do not fit, or are not better
  int64_t exact_ops = INT64_MAX;  ///< ops of all programs laid out
  bool kicks = true;              ///< whether it leaves local optima
};

/// What a refinement has evaluated, so that the next one from the same start goes on instead of
/// repeating it.
struct RefineMemory {
  std::deque<std::pair<Candidate, Score>> estimates;  ///< by sampled simulation
  std::vector<Candidate> refused;                     ///< not as good as estimated
};

struct Refined {
  Scored best;
  bool stalled = false;  ///< no step helps
  bool settled = false;  ///< no step helps, and none was skipped to save effort
};

/// The best candidate that steps from `start` lead to, exact; `start` itself if none helps. `seen`
/// gets every exactly evaluated candidate that fits. REQUIRES: `start` is exact and admitted.
Refined refined(Evaluator& evaluator, const Ranking& ranking, std::span<const Candidate> frames,
                const SpaceOptions& options, const Scored& start, const RefineEffort& effort,
                RefineMemory& memory, std::vector<Scored>& seen);

}  // namespace longspan
