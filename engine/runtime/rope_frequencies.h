// The frequencies of rotary position embeddings, common to all backends. Pure.
#pragma once

#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// Returns the radians per position of each of the D/2 column pairs of a head: theta^(-2i/D), with
/// Llama 3.1 scaling if the model has it (frequencies of long wavelengths divided by its factor, of
/// short ones kept, others interpolated). REQUIRES: model.positions is rope.
std::vector<double> rope_frequencies(const ModelSpec& model);

}  // namespace longspan
