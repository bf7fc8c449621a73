// Tensor parallelism's cut through the parameters: what of a layer each of T ranks has.
//
// A rank's layers are the layers of a narrow model: H/T heads, Hkv/T key/value heads and F/T of the
// MLP's inner width, at the same hidden width. Their parameter units are parameter_units() of that
// model. The matrices that widen (q, k, v, gate, up) are cut by rows, with their biases; those that
// come back to the hidden width (out, down) by columns. What is left is replicated, the same
// numbers on every rank: norms, q/k norms and the biases of out and down. Embedding and head are
// the same units in both models, replicated as a whole.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// The model that one of `degree` ranks has layers of. REQUIRES: degree divides heads, kv_heads and
/// ffn.
ModelSpec narrow_model(const ModelSpec& model, int64_t degree);

/// Elements [narrow, narrow + count) of a rank's unit are [whole, whole + count) of the model's.
struct SliceRun {
  int64_t narrow = 0, whole = 0, count = 0;
  bool replicated = false;  // every rank has them
  bool operator==(const SliceRun&) const = default;
};

/// The runs that make up the unit that rank `index` of `degree` holds of `unit`, in the order of
/// the narrow unit and without gaps in it. `unit` is one of parameter_units(model), of the whole
/// model. REQUIRES: as narrow_model(); 0 <= index < degree.
std::vector<SliceRun> slice_runs(const ModelSpec& model, const ParameterUnit& unit, int64_t degree,
                                 int64_t index);

/// The replicated part of a layer: elements [begin, end) of the narrow unit, in order, not
/// adjacent.
struct UnitRange {
  int64_t begin = 0, end = 0;
  bool operator==(const UnitRange&) const = default;
};
std::vector<UnitRange> replicated_in_layer(const ModelSpec& model, int64_t degree);

}  // namespace longspan
