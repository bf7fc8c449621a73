// Records the figures that a check measures. Each is appended at once, as one line of JSON, to the
// file that LONGSPAN_FIGURES names, so that nothing is lost if the process crashes.
#pragma once

#include <string>
#include <string_view>

namespace longspan::testing {

/// "attention_forward, bfloat16, largest error" = 0.0017, "1". Does nothing without
/// LONGSPAN_FIGURES.
void figure(std::string_view name, double value, std::string_view unit);
void figure(std::string_view name, std::string_view text);

}  // namespace longspan::testing
