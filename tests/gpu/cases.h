// Steps for the checks of this folder.
#pragma once

#include "tests/engine/plan_runner.h"

namespace longspan::testing {

/// Returns the same plan, `factor` times as long and wide: hidden and inner widths, head
/// dimensions, chunks and tiles. Weights shrink so that activations stay near one in magnitude.
StepCase widened(StepCase step, int64_t factor);

/// Returns the factor for the device under test: head dimensions of 64 to 128 on a GPU, for which
/// libraries have kernels; on the host a size that plain loops compute in seconds.
int64_t wide();

}  // namespace longspan::testing
