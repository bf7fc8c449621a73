// The lengths of the slices in which a pipeline passes a sequence.
//
// Costs, memory and lowering take them from here, so all three are of the same slices. Pure
// functions; safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/slice_split.h"
#include "planner/strategy/strategy.h"

namespace longspan {

/// The work of a token of all layers, for slices of equal work. Small integers in units of a pair
/// of a query and a key, so that slices of millions of tokens are exact; the same for a model and
/// for a stage of it, if its layers are alike.
TokenCost token_cost_of(const ModelSpec& model, int64_t sequence);

/// The tokens that every slice is a multiple of: a block, but no more than a mean slice.
int64_t slice_unit(const Strategy& strategy, int64_t sequence);

/// The tokens of every slice, first to last: equal, or of equal work to the nearest slice_unit().
/// REQUIRES: the strategy is valid for model and length.
std::vector<int64_t> slice_lengths(const ModelSpec& model, const Strategy& strategy,
                                   int64_t sequence);

}  // namespace longspan
