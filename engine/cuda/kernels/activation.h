// The activations of an MLP or of an expert, forward and backward.
//
// Legend: n rows, F width of one matrix, W = 2F if the activation is gated (gate | up), else F. T
// is float or bfloat16.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"
#include "models/model_spec.h"

namespace longspan::cuda {

/// act[n,F] = f(inner[n,W]).
template <class T>
void activate(const Queue&, Activation, int64_t n, int64_t ffn, const T* inner, T* act);

/// Replaces inner[n,W] by its gradient, from d_act[n,F].
template <class T>
void activate_backward(const Queue&, Activation, int64_t n, int64_t ffn, const T* d_act, T* inner);

}  // namespace longspan::cuda
