// models besides the trained one, in preference tuning and reinforcement learning: the memory of a
// GPU at the fullest moment of a step, and the time of all that a step does with them.
//
// A step rolls out samples, runs models forward over them, and then updates the trained model and
// a critic in turn. What runs needs activations; what waits holds its parameters and, if it is
// trained, its optimizer's states. The rollout itself is not predicted. Pure functions; safe from
// any thread.
#pragma once

#include "frameworks/model/run_memory.h"
#include "frameworks/model/run_time.h"

namespace longspan {

/// The run of one of these models, as if there were no others.
TrainingRun run_of(const OtherModel& other, const TrainingRun& run);

/// The fullest of these moments: the update of the trained model, that of a critic, and a forward
/// pass with more sequences at a time than an update. REQUIRES: as run_time().
RunMemory step_memory(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                      const Stack& stack, const RunPipeline* known = nullptr);

/// The time of a step: all its updates and forward passes. A step without other models is one
/// run_time(). REQUIRES: as run_time().
RunTime step_time(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                  const Stack& stack, const RunPipeline* known = nullptr);

}  // namespace longspan
