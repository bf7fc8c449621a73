// The prediction of a training run under a framework: time of a step and memory of the fullest GPU.
//
// A closed form over the run's layers, with the framework's costs as terms of a Stack. No program
// is built: Longspan's own plans are predicted by simulation instead. Pure functions; safe from any
// thread.
#pragma once

#include <cstdint>

#include "frameworks/model/run_memory.h"
#include "frameworks/model/run_time.h"
#include "frameworks/model/stack.h"
#include "frameworks/prediction_interval.h"
#include "frameworks/training_run.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"
#include "planner/evaluate/fit.h"

namespace longspan {

/// Bytes that a run needs.
struct RunNeeds {
  RunMemory memory;         // tensors on the fullest device, by cause
  double reserved = 0;      // what the allocator takes for them
  double device = 0;        // all in use there, with context and libraries
  double host = 0;          // of a node
  bool addressable = true;  // whether the framework's kernels can address its tensors

  /// Whether the run fits if it takes `memory_share` times the predicted memory, on device and
  /// host, and leaves `spare_bytes` of the device free.
  bool fit(const HardwareProfile& hw, double memory_share = 1, double spare_bytes = 0) const;
};

struct RunPrediction {
  TrainingRun run;  // with what the prediction has chosen where the run leaves it open
  RunTime time;
  RunNeeds needs;
};

/// The hardware as the framework sees it: with the attention kernel of the run, or else of the
/// stack where its rates are known. Throws bad_input where those of the run's kernel are not.
HardwareProfile hardware_under(const TrainingRun& run, const Stack& stack,
                               const HardwareProfile& hw);

/// Whether a run with these needs fits, if the true memory lies in an interval of multiples of the
/// predicted one, and `spare_bytes` of the device stay free.
Fit verdict_of(const RunNeeds& needs, const HardwareProfile& hw, const PredictionInterval& memory,
               double spare_bytes = 0);

/// Tokens of a step's samples; they are in each of its epochs.
double step_tokens(const TrainingRun& run);

/// The share of a GPU's best rate that a step's model FLOPs are, of the updates of the trained
/// model; `causal` as model_flops() has it.
double mfu_of(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
              double step_seconds, bool causal = true);

/// Whether the model can see this many tokens: a table of learned positions ends.
bool has_positions(const ModelSpec& model, int64_t tokens);

/// Predicts a run. `hw` has the run's GPUs. Throws bad_input if the run's
/// schedule does not exist with these numbers.
RunPrediction predict_run(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                          Stack stack);

/// What the run needs with sequences of `tokens` tokens, otherwise the same. REQUIRES: the run's
/// microbatch is known; `hw` is hardware_under() the stack.
RunNeeds needs_at(const TrainingRun& run, int64_t tokens, const ModelSpec& model,
                  const HardwareProfile& hw, const Stack& stack);

}  // namespace longspan
