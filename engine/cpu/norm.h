// LayerNorm and RMSNorm over the hidden width, and RMSNorm of heads, forward and backward. Internal
// to engine/cpu.
//
// Legend: n rows, d hidden. layernorm: h = (x - mean) * r * w + b, r = 1/sqrt(var + eps);
// rmsnorm: h = x * r * w, r = 1/sqrt(mean(x^2) + eps). With norm_offset w is 1 + the weight.
#pragma once

#include <cstdint>

#include "engine/cpu/thread_pool.h"
#include "models/model_spec.h"

namespace longspan::cpu {

/// Pointers to one norm's parameters, or to their gradients.
template <class Float>
struct NormTensors {
  Float* weight = nullptr;  // [d]
  Float* bias = nullptr;    // [d], null under rmsnorm
};

/// The tensors at these offsets of a unit; -1 means no tensor. A null unit has none.
template <class Float>
NormTensors<Float> norm_tensors(Float* unit, int64_t weight, int64_t bias) {
  if (unit == nullptr) return {};
  return {unit + weight, bias < 0 ? nullptr : unit + bias};
}

/// h[n,d] = norm(x[n,d]). h may alias x.
void norm_forward(ThreadPool& pool, const ModelSpec& model, NormTensors<const float> parameters,
                  const float* x, int64_t n, float* h);

/// dx[n,d] = the gradient of x from dh[n,d], plus `more` [n,d] unless null; gradients of the
/// parameters += unless null. dx may alias `more`; without it, x.
void norm_backward(ThreadPool& pool, const ModelSpec& model, NormTensors<const float> parameters,
                   const float* x, const float* dh, int64_t n, const float* more, float* dx,
                   NormTensors<float> gradients);

/// RMSNorm in place of one head, or of all heads of a token, of `width` elements together.
void head_norm_forward(const ModelSpec& model, const float* weight, int64_t width, float* x);
/// dx in place: on entry the gradient of the normed head, on return that of x, the head before the
/// norm. x is overwritten with this head's part of the weight's gradient.
void head_norm_backward(const ModelSpec& model, const float* weight, int64_t width, float* x,
                        float* dx);

}  // namespace longspan::cpu
