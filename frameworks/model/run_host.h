// Host memory of a run, and the time of its copies: checkpoints that wait there for the backward,
// chunks of attention's tensors, parameters that are fetched for every pass, and an optimizer that
// runs there.
#pragma once

#include "frameworks/model/stack.h"
#include "frameworks/training_run.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"

namespace longspan {

/// Traffic of one rank of the first stage; exact bytes, without regard to the copies' rate.
struct HostTraffic {
  double down = 0, up = 0;       // bytes a step, device to host and back
  double updated = 0;            // parameters that its host updates
  double read = 0, written = 0;  // bytes a step, of files
  double spilled = 0;            // bytes a step, to files and back during computation
};

/// REQUIRES: the run's microbatch is known; model is its dense model.
HostTraffic host_traffic(const TrainingRun& run, const ModelSpec& model, const Stack& stack);

/// Seconds a step waits for the host: for the copies that `compute_seconds` do not hide, one
/// direction after the other, and for the update, in which all ranks of a node share its memory.
/// REQUIRES: as host_traffic(); hw has the case's GPUs.
double host_seconds(const TrainingRun& run, const HardwareProfile& hw, const Stack& stack,
                    const HostTraffic& traffic, double compute_seconds);

/// Bytes of host memory that a node of the first stage's ranks takes, besides the stack's
/// host_process_bytes. REQUIRES: as host_traffic().
double host_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack);

/// The share that a stage keeps on the host. `shares`: one for each stage, or one for all; empty:
/// none.
double offloaded(const std::vector<double>& shares, int64_t stage);

}  // namespace longspan
