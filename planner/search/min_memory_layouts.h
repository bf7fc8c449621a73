// Selects the layouts of ranks for searches for little memory. Internal to planner/search.
#pragma once

#include <vector>

#include "planner/evaluate/evaluator.h"
#include "planner/search/space.h"

namespace longspan {

/// For each set of layouts that differ only in their schedule: the ones that hold fewest
/// microbatches in flight, one whose backward may recompute and one that splits it; of equals one
/// that cuts the vocabulary. Layouts without a pipeline stay. Layouts whose schedule does not take
/// these numbers are left out.
std::vector<RankLayout> min_memory_layouts(Evaluator& evaluator,
                                           const std::vector<RankLayout>& all);

}  // namespace longspan
