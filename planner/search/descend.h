// Descent through a space of knobs. Internal to planner/search.
#pragma once

#include <utility>
#include <vector>

#include "planner/search/judge.h"
#include "planner/search/knobs.h"

namespace longspan {

// Changes one knob at a time, for the better, until no single change helps. `worth` says whether a
// changed strategy may be better than the best so far, `score` how good it is.
template <class ScoreOf, class Worth>
Candidate descend(Candidate best, const std::vector<Knob>& space, Objective objective,
                  const ScoreOf& score, const Worth& worth) {
  for (bool improved = true; improved;) {
    improved = false;
    for (const Knob& knob : space) {
      const Strategy from = best.strategy;
      for (const auto& set : knob.values) {
        Strategy changed = from;
        set(changed);
        if (changed == from || !worth(changed, best)) continue;
        const Score value = score(changed);
        if (!value.better_than(best.score, objective)) continue;
        best = {std::move(changed), value};
        improved = true;
      }
    }
  }
  return best;
}

}  // namespace longspan
