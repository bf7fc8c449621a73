// The run that knobs describe: on some hardware, with the costs of a framework.
//
// Pure functions of their arguments; safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "frameworks/knobs/configured_model.h"
#include "frameworks/knobs/framework.h"
#include "frameworks/knobs/run_knobs.h"
#include "frameworks/model/predict_run.h"
#include "frameworks/training_run.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"

namespace longspan {

struct ConfiguredRun {
  ModelSpec model;
  HardwareProfile hw;  // the GPUs that the run uses
  TrainingRun run;
  Stack stack;
};

/// The run. It uses the GPUs that the knobs say, or all. Throws bad_input for knobs that contradict
/// each other, the hardware, the model, or a rule of the framework; and for adapters and experts,
/// which the stack model does not cover. REQUIRES: the sequence is set.
ConfiguredRun configure(const RunKnobs& knobs, const Framework& framework, const ModelSpec& model,
                        const HardwareProfile& hw, const KnobPlaces& places);

/// Its prediction.
RunPrediction predict(const ConfiguredRun& configured);

/// Clears the knobs that say which machine a run is on, where the hardware says that.
void clear_machine(RunKnobs& knobs);

}  // namespace longspan
