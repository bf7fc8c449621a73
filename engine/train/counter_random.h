// A counter-based random number generator: each number is a function of (key, index). It has no
// state: values do not depend on the order of calls, threads, slices or the standard library.
#pragma once

#include <cstdint>
#include <string_view>

namespace longspan {

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits with good mixing.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// FNV-1a of the bytes of `text`.
constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// Returns the key of one stream of numbers.
constexpr uint64_t random_key(uint64_t seed, std::string_view name) {
  return mix64(fnv1a(name) ^ mix64(seed + 0x9e3779b97f4a7c15u));
}

/// Returns number `index` of the stream: uniform in the open interval (0, 1), a multiple of 2^-53.
constexpr double uniform_at(uint64_t key, uint64_t index) {
  const uint64_t bits = mix64(key + (index + 1) * 0x9e3779b97f4a7c15u) >> 12;  // 52 bits
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace longspan
