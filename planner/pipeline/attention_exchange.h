// Attention shared out among ranks that are at slices of one sequence (SlimPipe, arXiv 2504.14519).
// Internal to planner/pipeline.
//
// With n equal slices, slice j attends to j + 1/2 slices' keys, so that uniform slices would take
// unequal time. In SlimPipe's order p ranks work on p slices in a row at any time: where the first
// rank is at slice k, rank r is at slice k - r (mod n), forwards and backwards. Ranks with more
// keys than the mean of this window send the keys and values that are too many, with their queries,
// to ranks that have fewer, and get partial outputs back, as the paper describes it. Every rank
// then attends for as long as the mean of the window's slices; rank r is at slice j in window k = j
// + r. The paper gives no formula: this one is derived from its text. Where n = p all windows are
// alike.
//
// The exchange of a window is as large as its rank that is furthest from the mean makes it, by x
// slices' keys: forward x (K + V) + Q + O, backward 2 x (K + V) + Q + dO + dQ, as gradients of keys
// and values come back. It is an all-to-all of the pipeline's ranks, in every layer, and nothing of
// it is hidden behind attention (SlimPipe hides some). Left out are the rows' sums of the softmax,
// and the borrowed keys' memory, which is one layer's. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/pipeline/slices.h"

namespace longspan {

/// By window, the mean of what its slices take; the sum is that of all slices.
std::vector<double> means_of_windows(const std::vector<double>& by_slice, int64_t ranks);

/// By window, how many slices' keys its rank that is furthest from the mean is away from it.
std::vector<double> keys_exchanged(int64_t slices, int64_t ranks);

/// `earlier` by window of a pipeline's ranks, with the exchanges. `slice` is of one of its slices,
/// without the pipeline.
EarlierSlices exchanged(const EarlierSlices& earlier, const StepRequest& slice, int64_t ranks,
                        const CostModel& cost);

}  // namespace longspan
