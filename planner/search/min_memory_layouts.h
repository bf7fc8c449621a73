// Selects the layouts of ranks for searches for the least memory. Internal to planner/search.
#pragma once

#include <vector>

#include "planner/evaluate/evaluator.h"
#include "planner/search/space.h"

namespace longspan {

/// Groups pipeline layouts that differ only in their schedule. Layouts with other virtual stages,
/// and slices of equal work and of equal length, are groups of their own, as their chunks differ.
/// It returns at most four of each group, those with the fewest microbatches in flight: one that
/// splits the backward, and one that does not and may recompute; and of both one that copies to the
/// host and one that does not. Ties go to a layout with vocabulary parallelism. Layouts without a
/// pipeline are all returned. Layouts whose schedule does not support their stages, slices and
/// microbatches are dropped.
std::vector<RankLayout> min_memory_layouts(Evaluator& evaluator,
                                           const std::vector<RankLayout>& all);

}  // namespace longspan
