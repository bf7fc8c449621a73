// The longest sequence that fits, for any test of whether one fits. Pure functions; safe from any
// thread.
#pragma once

#include <cstdint>
#include <functional>

#include "frameworks/training_run.h"

namespace longspan {

/// Tokens that the degrees and the chunk of a run require its sequence to be a multiple of.
int64_t granularity_of(const TrainingRun& run);

/// The largest multiple of `granularity` tokens for which `fits` holds, to within a `parts`-th of
/// it and at most 2^27; 0 if there is none. `fits` must not hold again beyond a length where it
/// fails. REQUIRES: granularity > 0; parts > 0.
int64_t longest_multiple(int64_t granularity, int64_t parts,
                         const std::function<bool(int64_t tokens)>& fits);

}  // namespace longspan
