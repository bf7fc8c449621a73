// Memory that a GPU holds only while one layer, or the loss, runs: tensors between the kernels of a
// backward. It limits long sequences once checkpoints are offloaded.
#pragma once

#include "frameworks/model/layer_work.h"
#include "frameworks/model/stack.h"
#include "frameworks/training_run.h"
#include "models/model_spec.h"

namespace longspan {

/// Bytes in addition to the layer's input while the backward of a layer runs; its forward has left
/// `saved` of them. The larger of two moments: the MLP's backward, with all that is saved, and
/// attention's, when the MLP's part has been freed. REQUIRES: the run's microbatch is known.
double layer_work_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack,
                        double saved);

/// Bytes while the loss is differentiated, for all logits or a tile of them. REQUIRES: as
/// layer_work_bytes().
double loss_work_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack);

}  // namespace longspan
