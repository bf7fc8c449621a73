// Rotary position embedding with Hugging Face's rotate-half convention, in place.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"
#include "models/model_spec.h"

namespace longspan::cuda {

inline constexpr int64_t kMaxHeadDim = 256;

/// Radians per position of each pair of a head's columns; small enough to be a kernel's argument.
struct RopeTable {
  int64_t half = 0;  // D/2; 0 where the model has no rotary positions
  double frequency[kMaxHeadDim / 2] = {};
};

/// With the scaling of Llama 3.1 where the model has it. REQUIRES: head_dim is at most kMaxHeadDim.
RopeTable rope_table(const ModelSpec& model);

/// Rotates every head of x[n, heads * D]; row i sits at global position position0 + i. The angles
/// are worked out in double from the position alone. With `back` the inverse, which is also the
/// gradient. T is float or bfloat16.
template <class T>
void rotate(const Queue&, const RopeTable&, int64_t n, int64_t position0, int64_t heads, bool back,
            T* x);

}  // namespace longspan::cuda
