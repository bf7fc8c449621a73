// Memory that a GPU holds while the loss runs, for all logits or a tile of them. Pure functions.
#pragma once

#include "frameworks/model/stack.h"
#include "frameworks/training_run.h"
#include "models/model_spec.h"

namespace longspan {

/// Bytes while the loss is differentiated. `head_bytes`: of an element of the head's weights, as
/// the loss reads them. REQUIRES: the run's microbatch is known.
double loss_work_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack,
                       double head_bytes = 2);

/// Bytes at the end of the forward, where the stack counts them; else 0. REQUIRES: as
/// loss_work_bytes().
double loss_forward_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack);

/// Bytes of logits when a reference model has run forward after the trained one, whose own wait for
/// its backward. REQUIRES: as loss_work_bytes().
double reference_loss_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack);

}  // namespace longspan
