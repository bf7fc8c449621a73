// Parses shares, times and rates typed by a user, in addition to the quantities of base/units.h.
// Pure functions.
#pragma once

#include <string>

namespace longspan {

/// A share from "5%" or "0.05", not negative. Throws bad_input naming `what`.
double parse_share(const std::string& text, const char* what);

/// Seconds from "90s", "10min", "1.5h" or "2d", greater than 0. Throws bad_input naming `what`.
double parse_duration(const std::string& text, const char* what);

/// A rate per second, greater than 0. Throws bad_input naming `what`.
double parse_rate(const std::string& text, const char* what);

}  // namespace longspan
