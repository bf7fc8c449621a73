// Tensor parallelism's cut of the parameters: the part of a layer on each of T ranks.
//
// A rank's layers are those of a narrow model: H/T heads, Hkv/T key/value heads and F/T of the
// MLP's inner width, at the same hidden width. Their parameter units are parameter_units() of that
// model. Matrices that widen (q, k, v, gate, up) are cut by rows, with their biases; those that
// return to the hidden width (out, down) by columns. Norms, q/k norms and the biases of out and
// down are replicated, with equal values on every rank. Embedding and head are the same units in
// both models and wholly replicated. Every expert of a mixture is cut like an MLP, and so are
// shared experts; routers are replicated.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// Whether `degree` divides heads, kv_heads and the inner widths of all layers: the ffn of those
/// with an MLP, and the widths of experts.
bool divides_widths(const ModelSpec& model, int64_t degree);

/// The model of the layers on one of `degree` ranks. REQUIRES: divides_widths().
ModelSpec narrow_model(const ModelSpec& model, int64_t degree);

/// Elements [narrow, narrow + count) of a rank's unit are [whole, whole + count) of the model's.
struct SliceRun {
  int64_t narrow = 0, whole = 0, count = 0;
  bool replicated = false;  // every rank has them
  bool operator==(const SliceRun&) const = default;
};

/// A rank's part of the experts of a layer: those of index `index` of `degree` equal ranges.
struct ExpertRange {
  int64_t degree = 1, index = 0;
};

/// The runs of the part of `unit` on rank `index` of `degree`, in the order of the narrow unit and
/// without gaps in it; of experts, which are on several ranks, those of a range. `unit` is one of
/// parameter_units(model), of the whole model. REQUIRES: as narrow_model(); 0 <= index < degree.
std::vector<SliceRun> slice_runs(const ModelSpec& model, const ParameterUnit& unit, int64_t degree,
                                 int64_t index, const ExpertRange& experts = {});

/// The replicated part of a layer of a uniform model: elements [begin, end) of the narrow unit, in
/// order, not adjacent.
struct UnitRange {
  int64_t begin = 0, end = 0;
  bool operator==(const UnitRange&) const = default;
};
std::vector<UnitRange> replicated_in_layer(const ModelSpec& model, int64_t degree);

}  // namespace longspan
