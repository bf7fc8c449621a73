// The frequencies of rotary position embeddings, common to all backends. Pure.
#pragma once

#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// The columns of a head that are rotated, the first ones: R of D.
int64_t rotated_columns(const ModelSpec& model);

/// Returns the radians per position of each of the R/2 pairs of rotated columns: theta^(-2i/R),
/// scaled as model.rope_scaling says. REQUIRES: model.positions is rope.
std::vector<double> rope_frequencies(const ModelSpec& model);

/// The factor by which a rotation multiplies a head: 1 unless the scaling is YaRN.
double rope_magnitude(const ModelSpec& model);

}  // namespace longspan
