// The time of attention that ranks of a pipeline share (planner/schedule/attention_shares.h).
// Internal to planner/pipeline.
//
// In a meeting p ranks process p consecutive slices, in forward and backward: when the first rank
// is at slice k, rank r is at slice k - r (mod n). That is a window; there are n. At the first
// and last p-1 meetings of a step fewer ranks meet, and do their own work.
//
// Ranks that give or take in a window wait for each other, so attention takes them as long as the
// one of them that has most after sharing. Others have their own. Messages are not hidden: a lot
// costs its way there (queries, keys, values; in the backward also the gradient of the output and
// its sums) and back (output and its sums; gradients of queries, keys and values), as one transfer
// each between neighbours of the fabric, and the window takes as long as the rank with most of
// that. Attention that all layers recompute is shared again; if some layers save it, each rank
// recomputes its own. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/pipeline/slices.h"

namespace longspan {

/// What a rank does in the attention of its slice.
struct SharedSlice {
  int32_t rectangles = 0;  // of a slice's queries and a slice's keys, that it takes as long as
  bool shares = false;     // gives or takes
  int32_t window = 0;
};
/// By rank and slice: rank r at slice j is at r * slices + j. REQUIRES: ranks divides slices.
std::vector<SharedSlice> shared_slices(int64_t slices, int64_t ranks);

/// `earlier` of slices, by rank and slice, with the exchanges, and then without sharing. `slice`:
/// the request of one slice, without the pipeline.
EarlierSlices exchanged(const EarlierSlices& earlier, const StepRequest& slice, int64_t ranks,
                        const CostModel& cost);

}  // namespace longspan
