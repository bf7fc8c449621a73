// LayerNorm and RMSNorm over the hidden width, and RMSNorm of single heads of queries and keys.
//
// Legend: n rows, d width. layernorm: h = (x - mean) * r * w + b, r = 1/sqrt(var + eps);
// rmsnorm: h = x * r * w, r = 1/sqrt(mean(x^2) + eps); w is the offset plus the weight. T is float
// or bfloat16.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

template <class T>
struct NormTensors {
  T* weight = nullptr;  // [d]
  T* bias = nullptr;    // [d], null under rmsnorm
};

/// The parameters of a norm.
struct NormKind {
  bool centers = false;  // layernorm
  float epsilon = 1e-5F;
  int64_t width = 0;
  float offset = 0;  // what the weight is added to before it multiplies
};

/// h[n,d] = norm(x[n,d]). h may be x.
template <class T>
void norm_forward(const Queue&, NormKind, NormTensors<const T>, const T* x, int64_t n, T* h);

/// dx[n,d] = norm'(x; dh[n,d]), plus `more` [n,d] unless null; gradients += unless null. dx may be
/// `more`; without it, x or dh.
template <class T>
void norm_backward(const Queue&, NormKind, NormTensors<const T>, const T* x, const T* dh, int64_t n,
                   const T* more, T* dx, NormTensors<float> gradients);

/// Normalizes x[n,D] in place; every row is a head, or all heads of a token.
template <class T>
void head_norm_forward(const Queue&, NormKind, const T* weight, int64_t n, T* x);
/// Computes dx[n,D] in place from the norm's input x[n,D]; gradient[D] +=.
template <class T>
void head_norm_backward(const Queue&, NormKind, const T* weight, int64_t n, const T* x, float* dx,
                        float* gradient);

}  // namespace longspan::cuda
