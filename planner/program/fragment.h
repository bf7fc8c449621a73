// A free part of an arena. Internal to planner/program.
#pragma once

#include <cstdint>

#include "planner/program/layout.h"

namespace longspan {

inline constexpr Waits kNoWaits = {-1, -1, -1, -1, -1, -1};

inline void merge(Waits& into, const Waits& from) {
  for (int s = 0; s < kStreamCount; ++s) {
    if (from[s] > into[s]) into[s] = from[s];
  }
}

/// A free part of an arena.
struct Fragment {
  int64_t offset = 0, bytes = 0;
  int64_t freed = 0;  // time of release: smaller is older, all distinct
  Waits history = kNoWaits;
  int64_t end() const { return offset + bytes; }
};

/// A hash of a fragment, without its age.
inline uint64_t key_of(int64_t offset, int64_t bytes) {
  const auto mixed = static_cast<uint64_t>(offset ^ (bytes << 7)) * 0x9E3779B97F4A7C15U;
  return mixed ^ mixed >> 32;
}

}  // namespace longspan
