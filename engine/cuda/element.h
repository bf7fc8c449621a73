// Element types in device memory: float or bfloat16. Arithmetic is always in float: values are
// widened when read and rounded to nearest even when written.
//
// Device code is compiled twice: by the CUDA compiler for the GPU, and by the host's compiler for
// tests that run the same kernels on a CPU. LONGSPAN_DEVICE marks functions called by kernels,
// LONGSPAN_BODY lambdas that are bodies of kernels.
#pragma once

#include <cmath>

#include "base/bfloat16.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#define LONGSPAN_DEVICE __host__ __device__
#define LONGSPAN_BODY __device__
#else
#define LONGSPAN_DEVICE
#define LONGSPAN_BODY
#endif

namespace longspan::cuda {

LONGSPAN_DEVICE inline float to_float(float x) { return x; }
LONGSPAN_DEVICE inline float to_float(bfloat16 x) { return widen(x); }

template <class T>
LONGSPAN_DEVICE T from_float(float x);

template <>
LONGSPAN_DEVICE inline float from_float<float>(float x) {
  return x;
}

template <>
LONGSPAN_DEVICE inline bfloat16 from_float<bfloat16>(float x) {
#if defined(__CUDA_ARCH__)
  return {static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(x)).x};  // one instruction
#else
  return narrow(x);
#endif
}

// Exact divisions and roots take ten instructions more each, and a call that spills registers.
// These are exact on the host, and to 2 ulp on a GPU.

/// a / b; on a GPU 0 if |b| > 2^126.
LONGSPAN_DEVICE inline float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}
LONGSPAN_DEVICE inline float root(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return sqrtf(x);
#endif
}
/// 1 / root(x).
LONGSPAN_DEVICE inline float inverse_root(float x) {
#if defined(__CUDA_ARCH__)
  return rsqrtf(x);
#else
  return 1 / sqrtf(x);
#endif
}

/// Whether x is neither infinite nor NaN.
LONGSPAN_DEVICE inline bool finite(double x) { return x - x == 0; }

}  // namespace longspan::cuda
