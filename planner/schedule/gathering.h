// Writes UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD into a schedule's lists, for parameters
// that are sharded over data replicas (ZeRO 3, FSDP).
//
// The rule is that of PyTorch's lowering of pipeline schedules: gather the stages that a rank works
// on next ahead of use, free the others, and sum a stage's gradients after its last backward. Pure
// functions; safe from any thread.
#pragma once

#include "planner/schedule/schedule.h"

namespace longspan {

/// Stages of a rank that PyTorch keeps gathered: one in forward, one in backward, one ahead.
inline constexpr int32_t kGatheredStages = 3;

/// Returns `schedule` with each rank's next `most` stages gathered before every action, and any
/// others that run as one with the last of them; all other stages are freed, and at the end every
/// stage. Throws bad_input for `most` < 1, or if the lists have such actions already. REQUIRES: at
/// most `most` stages in actions that run as one.
Schedule with_gathering(const Schedule& schedule, int32_t most = kGatheredStages);

}  // namespace longspan
