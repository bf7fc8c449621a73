// Matches names typed by users to known names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Whether two names differ only in case, hyphens, underscores, dots and spaces.
bool is_same_name(std::string_view a, std::string_view b);

/// Up to `limit` of `known` that are close to `word` (edit distance, case ignored, or one contains
/// the other), nearest first, ties in the order of `known`. Empty if there are no close names.
std::vector<std::string> nearest_names(std::string_view word, const std::vector<std::string>& known,
                                       size_t limit = 3);

/// `; did you mean "a" or "b"?`, or an empty string if there are no close names.
std::string nearest_hint(std::string_view word, const std::vector<std::string>& known);

}  // namespace longspan
