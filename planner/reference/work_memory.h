// Memory that a GPU holds only while one layer, or the loss, runs: tensors between the kernels of a
// backward, which long sequences are limited by once checkpoints wait elsewhere.
#pragma once

#include "planner/reference/case.h"
#include "planner/reference/layer_work.h"
#include "planner/reference/stack.h"

namespace longspan {

/// Bytes besides the layer's input while the backward of a layer runs, `saved` of which its forward
/// has left for it. The larger of two moments: the MLP's backward, when all that is saved is there,
/// and attention's, when the MLP's part is gone. REQUIRES: the case's microbatch is known.
double layer_work_bytes(const ReferenceCase& reference, const ModelSpec& model, const Stack& stack,
                        double saved);

/// Bytes while the loss is differentiated, of logits or of a tile of them.
/// REQUIRES: as layer_work_bytes().
double loss_work_bytes(const ReferenceCase& reference, const ModelSpec& model, const Stack& stack);

}  // namespace longspan
