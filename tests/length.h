// The number of cases of repetitive tests: over random cases, over combinations, or on large
// machines. By default they run fewer cases of the same checks; `scripts/test --all` runs all of
// them, with LONGSPAN_TEST_LENGTH=whole in the environment.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace longspan::testing {

/// Returns whether tests run at full length.
inline bool whole_length() {
  const char* length = std::getenv("LONGSPAN_TEST_LENGTH");
  return length != nullptr && std::string_view(length) == "whole";
}

/// Returns the number of cases to try: `all`, or by default the first `few` of them.
inline int64_t cases(int64_t few, int64_t all) { return whole_length() ? all : few; }

/// Returns whether to try combination number `turn`, counted from 0: by default one of `every`.
/// Choose an `every` that is coprime to the lengths of the inner loops, so that each value of each
/// loop is tried.
inline bool in_turn(int64_t turn, int64_t every) { return whole_length() || turn % every == 0; }

}  // namespace longspan::testing
