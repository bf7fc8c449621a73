// Attention divided among ranks that process slices of one sequence (SlimPipe, arXiv 2504.14519).
// Internal to planner/pipeline.
//
// With n equal slices, slice j attends to the keys of j + 1/2 slices, so equal slices take unequal
// time. In SlimPipe's order p ranks process p consecutive slices at any time: when the first rank
// is at slice k, rank r is at slice k - r (mod n), in forward and backward. Ranks with more keys
// than the mean of this window send the excess keys and values, with their queries, to ranks with
// fewer, and receive partial outputs, as the paper describes. Attention then takes the mean of the
// window's slices on every rank; rank r is at slice j in window k = j + r. The paper gives no
// formula; this one is derived from its text. If n = p, all windows are equal.
//
// The size of a window's exchange is set by the rank furthest from the mean, by the keys of x
// slices: forward x (K + V) + Q + O, backward 2 x (K + V) + Q + dO + dQ, as gradients of keys and
// values come back. It is an all-to-all of the pipeline's ranks in every layer, entirely exposed
// (SlimPipe hides some of it). The row sums of the softmax, and the memory of one layer's received
// keys, are not modelled. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/pipeline/slices.h"

namespace longspan {

/// By window, the mean of `by_slice` over its slices. The sum over all windows equals that over all
/// slices.
std::vector<double> means_of_windows(const std::vector<double>& by_slice, int64_t ranks);

/// By window, the largest distance of a rank's keys from the mean, in slices.
std::vector<double> keys_exchanged(int64_t slices, int64_t ranks);

/// `earlier` by window of the pipeline's ranks, plus the exchanges. `slice`: the request of one
/// slice, without the pipeline.
EarlierSlices exchanged(const EarlierSlices& earlier, const StepRequest& slice, int64_t ranks,
                        const CostModel& cost);

}  // namespace longspan
