// Infers the parts of a run's layout that its source omits, as a person who tunes the run would
// choose them.
#pragma once

#include "frameworks/model/stack.h"
#include "frameworks/training_run.h"
#include "hwprofiles/hardware_profile.h"
#include "models/model_spec.h"

namespace longspan {

/// The case with a complete layout. The case or else the stack decides the layers of stages. A
/// published microbatch is kept. Otherwise the fastest microbatch among powers of two that divide
/// the batch and fit; with it, where there are stages, the fastest interleaving that divides a
/// stage's layers. If nothing fits, one sequence and no interleaving. Sources that omit the
/// microbatch omit interleaving, too. Reads nothing that was measured.
TrainingRun infer_layout(const TrainingRun& run, const ModelSpec& model, const HardwareProfile& hw,
                         const Stack& stack);

}  // namespace longspan
