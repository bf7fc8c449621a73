// The activations of an MLP or of an expert, row by row, forward and backward. Internal to
// engine/cpu.
//
// Legend: n rows, F width of one matrix, W = 2F if the activation is gated (gate | up), else F.
#pragma once

#include <cstdint>

#include "engine/cpu/thread_pool.h"
#include "models/model_spec.h"

namespace longspan::cpu {

/// act[n,F] = f(inner[n,W]).
void activate(ThreadPool& pool, Activation activation, int64_t n, int64_t ffn, const float* inner,
              float* act);
/// Replaces inner[n,W] by its gradient, from d_act[n,F].
void activate_backward(ThreadPool& pool, Activation activation, int64_t n, int64_t ffn,
                       const float* d_act, float* inner);

}  // namespace longspan::cpu
