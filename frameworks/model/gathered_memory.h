// Parameters and gradients that a GPU holds whole for a while, where FSDP cuts them up. Pure
// functions.
#pragma once

#include "frameworks/model/stack.h"
#include "frameworks/model/step_moment.h"
#include "frameworks/training_run.h"
#include "models/model_spec.h"

namespace longspan {

/// Elements of a rank's parts of the model, one of each for a tensor group.
struct ModelParts {
  double all = 0, embedding = 0, layer = 0;
  double head = 0;     // the final norm and the head's weights, tied or not
  double ends = 0;     // that and the embedding
  double table = 0;    // the token table alone
  double outputs = 0;  // the head's matrix alone
  double down = 0;     // of a layer: the MLP's last product, whose gradient comes first
  double after = 0;    // of a layer: all but the products of queries, keys and values
  bool tied = false;   // head and embedding share the table
};
/// REQUIRES: the run has no pipeline.
ModelParts model_parts(const TrainingRun& run, const ModelSpec& model);

/// Whether FSDP keeps the head, and its gradient, until the embedding's backward.
bool head_waits(const ModelParts& parts, const Stack& stack);

/// Elements of the running layer's gradients at a moment in it; 0 at others.
double layer_gradients(const ModelParts& parts, StepMoment moment);

/// Bytes of FSDP's whole parameters and gradients and of its buffers, where each layer, the
/// embedding and the head are gathered as one, and the head stays gathered from its forward to its
/// backward: a layer's, the gathered one that comes next, and the gradients of the one before,
/// which are being reduced. REQUIRES: no pipeline.
double fsdp_bytes(const TrainingRun& run, const ModelSpec& model, const Stack& stack,
                  StepMoment moment);

}  // namespace longspan
