// The layouts of ranks that memory is looked for among. Internal to planner/search.
#pragma once

#include <vector>

#include "planner/evaluate/evaluator.h"
#include "planner/search/space.h"

namespace longspan {

/// The layouts that hold least in flight among those that differ in their schedule alone:
/// of those whose backward may recompute and of those that split it; of equals one that cuts the
/// vocabulary. Layouts without a pipeline stay. What a schedule does not take is left out.
std::vector<RankLayout> min_memory_layouts(Evaluator& evaluator,
                                           const std::vector<RankLayout>& all);

}  // namespace longspan
