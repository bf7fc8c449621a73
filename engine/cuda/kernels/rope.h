// Rotary position embedding with Hugging Face's rotate-half convention, in place.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"
#include "models/model_spec.h"
#include "planner/program/token_share.h"

namespace longspan::cuda {

inline constexpr int64_t kMaxHeadDim = 256;

/// Radians per position of each pair of a head's columns. Small enough for a kernel argument.
struct RopeTable {
  int64_t dim = 0;       // D
  int64_t half = 0;      // R/2 of R rotated columns; 0 if the model has no rotary positions
  double magnitude = 1;  // rope_magnitude()
  double frequency[kMaxHeadDim / 2] = {};
};

/// Includes the model's scaling. REQUIRES: head_dim at most kMaxHeadDim.
RopeTable rope_table(const ModelSpec& model);

/// Rotates every head of x[n, heads * D]; `tokens` has the global positions of the rows. Angles are
/// computed in double and depend on the position alone. `back` is the transposed, as for
/// gradients. T is float or bfloat16.
template <class T>
void rotate(const Queue&, const RopeTable&, int64_t n, const TokenPositions& tokens, int64_t heads,
            bool back, T* x);

}  // namespace longspan::cuda
