// Descent through a space of knobs. Internal to planner/search.
#pragma once

#include <utility>
#include <vector>

#include "planner/evaluate/judge.h"
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

// The same with two knobs at a time, once: what one change alone makes worse may pay with another.
template <class ScoreOf>
Candidate improve_by_pairs(Candidate best, const std::vector<Knob>& space, Objective objective,
                           const ScoreOf& score) {
  const Strategy from = best.strategy;
  for (size_t i = 0; i < space.size(); ++i) {
    for (const auto& set : space[i].values) {
      Strategy one = from;
      set(one);
      if (one == from) continue;
      for (size_t j = i + 1; j < space.size(); ++j) {
        for (const auto& also : space[j].values) {
          Strategy both = one;
          also(both);
          if (both == one) continue;
          const Score value = score(both);
          if (value.better_than(best.score, objective)) best = {std::move(both), value};
        }
      }
    }
  }
  return best;
}

}  // namespace longspan
