// How a published run partitions a model: internal to frameworks/model.
#pragma once

#include "frameworks/model/layer_work.h"
#include "frameworks/training_run.h"
#include "models/model_spec.h"

namespace longspan {

/// REQUIRES: the microbatch is known.
LayerShape layer_shape(const TrainingRun& run);
double microbatches(const TrainingRun& run);
double layers_of(const TrainingRun& run, const ModelSpec& model, int64_t stage);
/// Layers of a stage whose forward runs again.
double recomputed_layers(const TrainingRun& run, const ModelSpec& model, int64_t stage);
/// Which ends of the model a rank of the pipeline has.
struct ModelEnds {
  bool first = false, last = false;
};
/// The ends of a rank if the case names no schedule.
ModelEnds ends_of(const TrainingRun& run, int64_t rank);
/// Whether the case's schedule splits embedding and output layer over all ranks.
bool cuts_vocabulary(const TrainingRun& run);
/// Parameters of one rank of a stage. If there are several stages, the last has its own copy of a
/// token table that the head shares.
double rank_parameters(const TrainingRun& run, const ModelSpec& model, int64_t stage = 0);
/// What the model gives for a token: logits of the vocabulary, or the run's own outputs.
int64_t output_columns(const TrainingRun& run, const ModelSpec& model);
/// The model with as many tokens as it has outputs: for the work of its head.
ModelSpec with_outputs(const TrainingRun& run, const ModelSpec& model);
double rank_parameters(const TrainingRun& run, const ModelSpec& model, int64_t stage,
                       const ModelEnds& ends_here);
/// Ranks with the same parameters.
double replicas(const TrainingRun& run);
/// Those of them over which ZeRO shards the states.
double sharers(const TrainingRun& run);

/// Whether gradients of all parameters stay on each rank while there are microbatches to come.
bool gradients_wait_whole(const TrainingRun& run);
/// Bytes of a parameter on the device between its uses.
double bytes_of_parameter(const Stack& stack);
/// Bytes of the optimizer's states for a parameter: the run's, or else the stack's.
double optimizer_state_bytes(const TrainingRun& run, const Stack& stack);

}  // namespace longspan
