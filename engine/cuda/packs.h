// Packs: neighbouring elements of a row that a thread moves in accesses of 16 bytes. A kernel that
// moves 2 or 4 bytes at a time reaches a third of the memory's bandwidth.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "engine/cuda/element.h"

namespace longspan::cuda {

/// Elements of a pack, of any type.
inline constexpr int kPack = 8;

namespace detail {

struct alignas(16) Sixteen {
  uint32_t words[4];
};

LONGSPAN_DEVICE inline float as_float(uint32_t word) {
  float x;
  memcpy(&x, &word, sizeof x);
  return x;
}

LONGSPAN_DEVICE inline void unpack(const Sixteen& from, float* x, const float*) {
  for (int i = 0; i < 4; ++i) x[i] = as_float(from.words[i]);
}
// A bfloat16 is the upper half of a float.
LONGSPAN_DEVICE inline void unpack(const Sixteen& from, float* x, const bfloat16*) {
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = as_float(from.words[i] << 16);
    x[2 * i + 1] = as_float(from.words[i] & 0xFFFF0000U);
  }
}

LONGSPAN_DEVICE inline void pack(const float* x, Sixteen& to, const float*) {
  memcpy(to.words, x, sizeof to.words);
}
LONGSPAN_DEVICE inline void pack(const float* x, Sixteen& to, const bfloat16*) {
  for (int i = 0; i < 4; ++i) {
#if defined(__CUDA_ARCH__)
    const __nv_bfloat162 two = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);  // one instruction
    memcpy(&to.words[i], &two, sizeof two);
#else
    const bfloat16 two[2] = {narrow(x[2 * i]), narrow(x[2 * i + 1])};
    memcpy(&to.words[i], two, sizeof two);
#endif
  }
}

}  // namespace detail

/// Reads N elements, widened. REQUIRES: N is 1, or kPack and `from` is aligned to 16 bytes.
template <int N, class T>
LONGSPAN_DEVICE void load(const T* from, float (&x)[N]) {
  static_assert(N == 1 || N == kPack);
  if constexpr (N == 1) {
    x[0] = to_float(*from);
  } else {
    constexpr int kPerAccess = 16 / static_cast<int>(sizeof(T));
    const auto* parts = reinterpret_cast<const detail::Sixteen*>(from);
    for (int i = 0; i < N / kPerAccess; ++i) {
      const detail::Sixteen part = parts[i];
      detail::unpack(part, x + i * kPerAccess, from);
    }
  }
}

/// Writes N elements, rounded. REQUIRES: as load().
template <int N, class T>
LONGSPAN_DEVICE void store(const float (&x)[N], T* to) {
  static_assert(N == 1 || N == kPack);
  if constexpr (N == 1) {
    *to = from_float<T>(x[0]);
  } else {
    constexpr int kPerAccess = 16 / static_cast<int>(sizeof(T));
    auto* parts = reinterpret_cast<detail::Sixteen*>(to);
    for (int i = 0; i < N / kPerAccess; ++i) {
      detail::Sixteen part;
      detail::pack(x + i * kPerAccess, part, to);
      parts[i] = part;
    }
  }
}

/// Runs body(N, j) for all `width` elements of a row, of which the members of a team take turns:
/// for N of them from column j on. N is a std::integral_constant: kPack if `packs` is true, else,
/// and for what is left at the end, 1.
template <class Team, class Body>
LONGSPAN_DEVICE void each_pack(const Team& team, bool packs, int64_t width, Body body) {
  const int64_t whole = packs ? width / kPack : 0;
  for (int64_t i = team.rank(); i < whole; i += team.size()) {
    body(std::integral_constant<int, kPack>(), i * kPack);
  }
  for (int64_t j = whole * kPack + team.rank(); j < width; j += team.size()) {
    body(std::integral_constant<int, 1>(), j);
  }
}

/// Whether rows of these strides, in elements, at these addresses may be moved in packs. Null
/// pointers do not count.
inline bool in_packs(std::initializer_list<int64_t> strides,
                     std::initializer_list<const void*> pointers) {
  uintptr_t all = 0;
  for (const void* pointer : pointers) all |= reinterpret_cast<uintptr_t>(pointer);
  if (all % 16 != 0) return false;
  for (const int64_t stride : strides) {
    if (stride % kPack != 0) return false;
  }
  return true;
}

}  // namespace longspan::cuda
