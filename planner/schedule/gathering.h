// When a rank's stages have their parameters whole, where these are cut over data replicas (ZeRO 3,
// FSDP): UNSHARD, RESHARD, REDUCE_GRAD and its WAIT written into a schedule's lists.
//
// The rule is that of PyTorch's lowering of pipeline schedules: the stages that a rank works on
// next are gathered ahead, others are given up, and a stage's gradients are summed behind its last
// backward. Pure functions; safe from any thread.
#pragma once

#include "planner/schedule/schedule.h"

namespace longspan {

/// Stages of a rank that PyTorch gathers at once: one in forward, one in backward, one ahead.
inline constexpr int32_t kGatheredStages = 3;

/// `schedule` with the `most` stages that each rank does next gathered in front of every action,
/// and nothing else but what runs as one with the last of them; at the end nothing is. Throws
/// bad_input for `most` < 1, and where the lists have such actions already. REQUIRES: no more than
/// `most` stages in actions that run as one.
Schedule with_gathering(const Schedule& schedule, int32_t most = kGatheredStages);

}  // namespace longspan
