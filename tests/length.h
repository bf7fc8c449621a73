// How far the tests go that repeat themselves: over random cases, over combinations, or on large
// machines. What is short by default checks the same things, on fewer of them; `scripts/test --all`
// goes all the way, by LONGSPAN_TEST_LENGTH=whole in the environment.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace longspan::testing {

/// Whether tests go all the way.
inline bool whole_length() {
  const char* length = std::getenv("LONGSPAN_TEST_LENGTH");
  return length != nullptr && std::string_view(length) == "whole";
}

/// How many cases to try: `all`, or by default the first `few` of them.
inline int64_t cases(int64_t few, int64_t all) { return whole_length() ? all : few; }

/// Whether the combination `turn`, counted from 0, is tried: by default one of `every`. Take an
/// `every` without a divisor in common with the lengths of the inner loops: each value of each is
/// then tried.
inline bool in_turn(int64_t turn, int64_t every) { return whole_length() || turn % every == 0; }

}  // namespace longspan::testing
