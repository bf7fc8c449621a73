// The vector type of the hand-written kernels in this folder: as many floats as one register of the
// target instruction set. It uses the compiler's vector extension, so that one source serves SSE,
// AVX2 and AVX-512. Internal to engine/cpu.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace longspan::cpu {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(kLanes * sizeof(float))));
using VecInt = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

inline constexpr float kLog2E = 1.44269504088896340736F;
inline constexpr float kLn2 = 0.69314718055994530942F;

inline Vec broadcast(float x) { return x - Vec{}; }
inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

/// The first `count` < kLanes floats at p; the other lanes are zero.
inline Vec load_part(const float* p, int64_t count) {
  Vec v{};
  std::memcpy(&v, p, static_cast<size_t>(count) * sizeof(float));
  return v;
}
inline void store_part(float* p, Vec v, int64_t count) {
  std::memcpy(p, &v, static_cast<size_t>(count) * sizeof(float));
}

inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }

inline Vec square_root(Vec v) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xFFFF, v);  // the unmasked form warns in gcc 12
#elif defined(__AVX__)
  return _mm256_sqrt_ps(v);
#else
  for (int i = 0; i < kLanes; ++i) v[i] = std::sqrt(v[i]);
  return v;
#endif
}

inline float sum_lanes(Vec v) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) v[i] += v[i + step];
  }
  return v[0];
}
inline float max_lanes(Vec v) {
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

/// 2^x for x <= 127, to about 1 ulp; 0 below -126 (including -inf); NaN stays NaN. The integer part
/// of x becomes the exponent; the rest r, in [-1/2, 1/2], goes into the Taylor polynomial of 2^r,
/// whose remainder at degree 7 is below 1e-8.
inline Vec exp2(Vec x) {
  const Vec floor = broadcast(-126.0F);
  const VecInt below = x < floor;
  const Vec y = below ? floor : x;
  // Adding 1.5 * 2^23 puts round(y) into the low mantissa bits.
  const Vec magic = broadcast(12582912.0F);
  const Vec shifted = y + magic;
  const Vec r = y - (shifted - magic);
  Vec p = broadcast(1.5252733804059841e-5F);
  p = p * r + 1.5403530393381608e-4F;
  p = p * r + 1.3333558146428443e-3F;
  p = p * r + 9.6181291076284772e-3F;
  p = p * r + 5.5504108664821580e-2F;
  p = p * r + 2.4022650695910071e-1F;
  p = p * r + 6.9314718055994531e-1F;
  p = p * r + 1.0F;
  VecInt exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent - 0x4B400000 + 127) << 23;
  Vec power;
  std::memcpy(&power, &exponent, sizeof power);
  const Vec result = p * power;
  return below ? Vec{} : result;
}

/// e^x, clamped below the overflow of float, so that 1 / (1 + exp(x)) is always finite.
inline Vec exp(Vec x) { return exp2(min(x * kLog2E, broadcast(126.0F))); }
inline Vec sigmoid(Vec x) { return 1.0F / (1.0F + exp(-x)); }

template <int kStep, size_t... kLane>
inline void exchange_lanes(Vec& a, Vec& b, std::index_sequence<kLane...>) {
  const Vec x = a;
  const Vec y = b;
  a = __builtin_shufflevector(x, y, ((kLane & kStep) ? kLanes + kLane - kStep : kLane)...);
  b = __builtin_shufflevector(x, y, ((kLane & kStep) ? kLanes + kLane : kLane + kStep)...);
}
/// Transposes a square block in kLanes vectors: one butterfly per bit of the lane index.
template <int kStep = 1>
inline void transpose_block(Vec* v) {
  if constexpr (kStep < kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & kStep) == 0) {
        exchange_lanes<kStep>(v[i], v[i + kStep], std::make_index_sequence<kLanes>{});
      }
    }
    transpose_block<2 * kStep>(v);
  }
}

/// Calls body(offset, count) over [0, n) in vector steps; count is kLanes except in the tail.
template <class Body>
inline void for_lanes(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}
/// Loads and stores for the bodies of for_lanes.
inline Vec load(const float* p, int64_t count) {
  return count == kLanes ? load(p) : load_part(p, count);
}
inline void store(float* p, Vec v, int64_t count) {
  if (count == kLanes) {
    store(p, v);
  } else {
    store_part(p, v, count);
  }
}

}  // namespace longspan::cpu
