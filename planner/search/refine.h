// Local search around a plan: what the relaxation cannot see. Internal to planner/search.
//
// The relaxation knows bounds, so the best plan it leads to can be improved a little by almost any
// knob. From a plan that is known exactly, every single step of one knob is evaluated by sampled
// simulation; steps that promise most together are tried in pairs, because one may free the memory
// that another needs; and frames next to the plan's are rounded with the room it turned out to
// have. What the sampled simulation says is corrected by how far it was off for the plan itself.
// The best is laid out and simulated, and the search continues from there, until nothing helps.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/search/ranking.h"
#include "planner/search/space.h"

namespace longspan {

/// How much a refinement may do.
struct RefineEffort {
  int64_t evaluations = 600;      ///< by sampled simulation
  int64_t work = INT64_MAX;       ///< of those (SampledSimulation::work)
  int exact = 12;                 ///< layouts that turn out not to fit, or not to be better
  int64_t exact_ops = INT64_MAX;  ///< of all programs laid out
};

struct Refined {
  Scored best;
  bool settled = false;  ///< no step helps, and none was left out to save effort
};

/// The best that steps from `start` lead to, exact; `start` itself where none helps. REQUIRES:
/// `start` is exact and admitted. `seen` gets every candidate that was exactly evaluated and fits.
Refined refined(Evaluator& evaluator, const Ranking& ranking, const std::vector<Candidate>& frames,
                const SpaceOptions& options, const Scored& start, const RefineEffort& effort,
                std::vector<Scored>& seen);

}  // namespace longspan
