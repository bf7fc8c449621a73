// The extent of repetitive tests: over random cases, over combinations, or on large machines. By
// default they check the same things on fewer cases; `scripts/test --all` runs all of them, by
// LONGSPAN_TEST_LENGTH=whole in the environment.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace longspan::testing {

/// Whether tests run at full length.
inline bool whole_length() {
  const char* length = std::getenv("LONGSPAN_TEST_LENGTH");
  return length != nullptr && std::string_view(length) == "whole";
}

/// The number of cases to try: `all`, or by default the first `few` of them.
inline int64_t cases(int64_t few, int64_t all) { return whole_length() ? all : few; }

/// Whether the combination `turn`, counted from 0, is tried: by default one of `every`. Choose an
/// `every` without a divisor in common with the lengths of the inner loops: then each value of each
/// loop is tried.
inline bool in_turn(int64_t turn, int64_t every) { return whole_length() || turn % every == 0; }

}  // namespace longspan::testing
