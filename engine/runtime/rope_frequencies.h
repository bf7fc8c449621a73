// The frequencies of rotary position embeddings, common to all backends. Pure.
#pragma once

#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// Returns the radians per position of each of the D/2 column pairs of a head: theta^(-2i/D),
/// scaled as model.rope_scaling says. REQUIRES: model.positions is rope.
std::vector<double> rope_frequencies(const ModelSpec& model);

/// The factor by which a rotation multiplies a head: 1 unless the scaling is YaRN.
double rope_magnitude(const ModelSpec& model);

}  // namespace longspan
