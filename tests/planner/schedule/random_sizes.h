// Random sizes and times for tests of schedules' closed forms. Deterministic.
#pragma once

#include <cstdint>
#include <random>

#include "tests/planner/schedule/schedules.h"

namespace longspan::testing {

inline std::mt19937_64& dice() {
  static std::mt19937_64 random(7);
  return random;
}

inline int32_t between(int32_t least, int32_t most) {
  return least + static_cast<int32_t>(dice()() % static_cast<uint64_t>(most - least + 1));
}

/// Times for which the formulas of bubbles hold: W <= F and W <= I.
inline Asked random_asked(int32_t least_ranks = 2) {
  Asked asked;
  asked.ranks = between(least_ranks, 9);
  asked.microbatches = asked.ranks * between(2, 5);
  asked.forward = between(8, 12);
  asked.input = between(8, 12);
  asked.weight = between(1, 8);
  return asked;
}

inline double all(const Asked& a) { return a.forward + a.input + a.weight; }

}  // namespace longspan::testing
