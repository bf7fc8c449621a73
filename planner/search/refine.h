// Single steps from a candidate: what refines the answer of a search. Internal to planner/search.
#pragma once

#include <vector>

#include "planner/evaluate/evaluator.h"
#include "planner/search/space.h"

namespace longspan {

/// Candidates that differ from `c` in one knob that `options` leaves open, all of them valid. With
/// `nvme` also those that put something into a file.
std::vector<Candidate> refinements_of(const Candidate& c, const Evaluator& evaluator,
                                      const SpaceOptions& options, bool nvme);

}  // namespace longspan
