// bfloat16: the upper half of a float. A storage type; arithmetic is done in float.
#pragma once

#include <bit>
#include <cstdint>

namespace longspan {

struct bfloat16 {
  uint16_t bits = 0;
};

constexpr float widen(bfloat16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

/// Rounds to nearest, ties to even; a NaN stays a NaN.
constexpr bfloat16 narrow(float x) {
  if (x != x) return {0x7FC0};
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

}  // namespace longspan
