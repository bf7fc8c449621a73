// Shares, times and rates as a person types them, in addition to those of base/units.h. Pure
// functions.
#pragma once

#include <string>

namespace longspan {

/// A part of something from "5%" or "0.05", not negative. Throws bad_input naming `what`.
double parse_share(const std::string& text, const char* what);

/// Seconds from "90s", "10min", "1.5h" or "2d", more than none. Throws bad_input naming `what`.
double parse_duration(const std::string& text, const char* what);

/// A number of something per second, more than none. Throws bad_input naming `what`.
double parse_rate(const std::string& text, const char* what);

}  // namespace longspan
