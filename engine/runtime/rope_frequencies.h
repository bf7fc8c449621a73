// Rotary positions, the part of them that no backend does its own way. Pure.
#pragma once

#include <vector>

#include "models/model_spec.h"

namespace longspan {

/// Radians per position of each of the D/2 pairs of a head's columns: theta^(-2i/D), with the
/// scaling of Llama 3.1 where the model has it (long waves are slowed down by its factor, short
/// ones kept, those between interpolated). REQUIRES: model.positions is rope.
std::vector<double> rope_frequencies(const ModelSpec& model);

}  // namespace longspan
