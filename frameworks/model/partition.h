// How a published run partitions a model: internal to frameworks/model.
#pragma once

#include "frameworks/model/layer_mix.h"
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
/// Parameters of a rank: those of experts are on other ranks, and shared by others.
struct RankParameters {
  double shared = 0, experts = 0;
  double all() const { return shared + experts; }
};
/// Parameters of one rank of a stage. If there are several stages, the last has its own copy of a
/// token table that the head shares.
RankParameters parameters_of_rank(const TrainingRun& run, const ModelSpec& model, int64_t stage,
                                  const ModelEnds& ends_here);
/// All of them.
double rank_parameters(const TrainingRun& run, const ModelSpec& model, int64_t stage = 0);
/// Parameters of a layer on one rank.
RankParameters parameters_of_layer(const TrainingRun& run, const LayerGroup& kind);
/// What ZeRO leaves a rank of these: an equal part of all ranks that hold the same ones.
double shard_of(const TrainingRun& run, const RankParameters& parameters);
/// What the model gives for a token: logits of the vocabulary, or the run's own outputs.
int64_t output_columns(const TrainingRun& run, const ModelSpec& model);
/// The model with as many tokens as it has outputs: for the work of its head.
ModelSpec with_outputs(const TrainingRun& run, const ModelSpec& model);
double rank_parameters(const TrainingRun& run, const ModelSpec& model, int64_t stage,
                       const ModelEnds& ends_here);
/// Ranks with the same parameters, other than those of experts.
double replicas(const TrainingRun& run);
/// Those of them over which ZeRO shards the states.
double sharers(const TrainingRun& run);
/// Ranks with the same experts, and those of them over which ZeRO shards their states.
double expert_replicas(const TrainingRun& run);
double expert_sharers(const TrainingRun& run);
/// The work of all layers of a kind, which may be on a part of the sequence.
LayerShape shape_of(const LayerShape& shape, const LayerGroup& kind);

/// Whether gradients of all parameters stay on each rank while there are microbatches to come.
bool gradients_wait_whole(const TrainingRun& run);
/// Bytes of a parameter on the device between its uses.
double bytes_of_parameter(const Stack& stack);
/// Bytes of the optimizer's states for a parameter: the run's, or else the stack's.
double optimizer_state_bytes(const TrainingRun& run, const Stack& stack);

}  // namespace longspan
