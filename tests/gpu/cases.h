// Steps for the checks of this folder.
#pragma once

#include "tests/engine/plan_runner.h"

namespace longspan::testing {

/// The same plan, `factor` times as long and wide: hidden and inner widths, heads' dimensions,
/// chunks and tiles. Weights shrink so that activations stay near one in magnitude.
StepCase widened(StepCase step, int64_t factor);

/// The factor on the device under test: heads of 64 to 128 on a GPU, where libraries have kernels
/// for them; on the host a size that loops compute in seconds.
int64_t wide();

}  // namespace longspan::testing
