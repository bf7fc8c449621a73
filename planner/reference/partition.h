// How a published run partitions a model: internal to planner/reference.
#pragma once

#include "planner/reference/case.h"
#include "planner/reference/layer_work.h"

namespace longspan {

/// REQUIRES: the microbatch is known.
LayerShape layer_shape(const ReferenceCase& reference);
double microbatches(const ReferenceCase& reference);
double layers_of(const ReferenceCase& reference, const ModelSpec& model, int64_t stage);
/// Layers of a stage whose forward runs again.
double recomputed_layers(const ReferenceCase& reference, const ModelSpec& model, int64_t stage);
/// Which ends of the model a rank of the pipeline has.
struct ModelEnds {
  bool first = false, last = false;
};
/// The ends of a rank if the case names no schedule.
ModelEnds ends_of(const ReferenceCase& reference, int64_t rank);
/// Whether the case's schedule splits embedding and output layer over all ranks.
bool cuts_vocabulary(const ReferenceCase& reference);
/// Parameters of one rank of a stage. If there are several stages, the last has its own copy of a
/// token table that the head shares.
double rank_parameters(const ReferenceCase& reference, const ModelSpec& model, int64_t stage = 0);
double rank_parameters(const ReferenceCase& reference, const ModelSpec& model, int64_t stage,
                       const ModelEnds& ends_here);
/// Ranks with the same parameters, over which ZeRO shards their states.
double replicas(const ReferenceCase& reference);

}  // namespace longspan
