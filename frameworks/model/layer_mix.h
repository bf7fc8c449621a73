// The kinds of layers of a model, and how many of each a rank of a pipeline has: internal to
// frameworks/model.
#pragma once

#include <vector>

#include "frameworks/training_run.h"
#include "models/model_spec.h"

namespace longspan {

/// Layers that are alike. Those that predict further tokens are a kind of their own.
struct LayerGroup {
  ModelSpec model;     // as model_of_run(); next_token_layers is 1 for the kind of these
  double shared = 0;   // parameters of a layer without its experts
  double experts = 0;  // parameters of its experts
  double tokens = 1;   // share of the sequence that they work on
};

struct LayerMix {
  std::vector<LayerGroup> kinds;   // in the order of first occurrence
  double embedding = 0, head = 0;  // parameters of the ends
};

LayerMix layer_mix(const ModelSpec& model);

/// By kind: the layers of a stage. Interleaved, a rank has an equal part of its layers in each of
/// its virtual stages.
std::vector<double> layers_by_kind(const TrainingRun& run, const ModelSpec& model, int64_t stage);

/// The kinds of a stage's first and last layer.
struct EndKinds {
  size_t first = 0, last = 0;
};
EndKinds end_kinds(const TrainingRun& run, const ModelSpec& model, int64_t stage);

}  // namespace longspan
