// Step time under a framework: layers, stages, exchanges, update.
#pragma once

#include "frameworks/model/run_pipeline.h"
#include "frameworks/model/stack.h"
#include "frameworks/training_run.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"

namespace longspan {

/// Seconds of a step, by cause, on the rank of the slowest stage.
struct RunTime {
  double compute = 0;  // kernels, recomputation included, or the host that issues them
  double tensor = 0;   // exchanges of the tensor group that nothing hides
  double context = 0;  // exchanges of keys and values that nothing hides
  double experts = 0;  // of tokens, to experts and back, that nothing hides
  double data = 0;     // exchanges of gradients and parameters that nothing hides
  double bubble = 0;   // stages that wait for others
  double update = 0;   // of the parameters
  double host = 0;     // copies to and from the host that nothing hides, and the update there
  double rest = 0;     // time of a step for everything else
  double passes = 0;   // forward passes for log-probabilities, values and rewards
  double critic = 0;   // updates of a critic
  double step() const {
    return compute + tensor + context + experts + data + bubble + update + host + rest + passes +
           critic;
  }
};

/// The pipeline of a case that names a schedule. REQUIRES: as run_time().
RunPipeline run_pipeline(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                         const Stack& stack);

/// If the case names a schedule, `compute` includes the exchanges of the busiest rank, and `bubble`
/// is the rest of the schedule's time. REQUIRES: the run's microbatch is known; hw has its GPUs;
/// model is its dense model. `known`: the result of run_pipeline() for the case, if the caller has
/// it.
RunTime run_time(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                 const Stack& stack, const RunPipeline* known = nullptr);

/// Seconds of a forward pass over the sequences of an update. REQUIRES: as run_time().
double forward_time(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                    const Stack& stack);

}  // namespace longspan
