// What of a model is trained, and what is frozen.
//
// A model says it of itself: frozen_embedding, frozen_head, and the backward of its layers or runs.
// Frozen parameters have no gradient, no moments and no master copy. Layers below the lowest
// trained parameter have no backward at all.
#pragma once

#include <string>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// Layers [first, end).
struct LayerRange {
  int64_t first = 0, end = 0;
  bool operator==(const LayerRange&) const = default;
};

/// Parts of a model that are frozen.
struct Frozen {
  bool embedding = false, head = false;
  std::vector<LayerRange> layers = {};
};

/// Reads "embedding,head,layers 0-3,layers 6": parts, or `layers` alone for all of them. A range
/// includes its last layer. Throws bad_input for other text and for layers that the model does not
/// have.
Frozen parse_frozen(const std::string& text, const ModelSpec& model);

/// The model with these parts frozen besides those that are, and with no backward below the lowest
/// trained part. Throws bad_input if nothing is left to train.
ModelSpec freeze(const ModelSpec& model, const Frozen& frozen);

/// The model with nothing frozen, no adapters and weights in full: the architecture alone.
ModelSpec wholly_trained(const ModelSpec& model);

/// Whether anything is frozen.
bool is_frozen(const ModelSpec& model);
/// Whether the output matrix is trained: the head's, or the embedding's if they are tied.
bool trains_output(const ModelSpec& model);
/// Whether the units of a kind are trained. REQUIRES: `model` is uniform for the kinds of layers.
bool trains(const ModelSpec& model, ParameterUnit::Kind kind);
/// The number of parameters that are trained.
int64_t trained_parameter_count(const ModelSpec& model);

/// The parts that are frozen, as a text: "embedding, head, layers 0-3"; empty if none are.
std::string frozen_text(const ModelSpec& model);

}  // namespace longspan
