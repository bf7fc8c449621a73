// Edits texts that tests feed to parsers.
#pragma once

#include <catch2/catch.hpp>
#include <string>

namespace longspan::testing {

/// Returns `text` with the first `from` replaced; fails the test if there is none.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  INFO("looking for: " << from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace longspan::testing
