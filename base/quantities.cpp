#include "base/quantities.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

// The number at the start of a text, and the text after it.
std::optional<std::pair<double, std::string_view>> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  return std::pair{value, text.substr(static_cast<size_t>(end - text.data()))};
}

}  // namespace

double parse_share(const std::string& text, const char* what) {
  const auto number = number_of(text);
  if (number && number->first >= 0) {
    if (number->second.empty()) return number->first;
    if (number->second == "%") return number->first / 100;
  }
  throw bad_input("{}: expected a share such as 25% or 0.25, got \"{}\"", what, text);
}

double parse_duration(const std::string& text, const char* what) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 1e-3}, {"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}};
  const auto number = number_of(text);
  for (const auto& [unit, seconds] : kUnits) {
    if (number && number->first > 0 && number->second == unit) return number->first * seconds;
  }
  throw bad_input(
      "{}: expected a time with its unit such as 500ms, 90s, 10min, 1h or 2d, got \"{}\"", what,
      text);
}

double parse_rate(const std::string& text, const char* what) {
  const auto number = number_of(text);
  if (number && number->first > 0 && number->second.empty()) return number->first;
  throw bad_input("{}: expected a number greater than 0 such as 2500, got \"{}\"", what, text);
}

}  // namespace longspan
