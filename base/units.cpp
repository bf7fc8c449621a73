#include "base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

struct Unit {
  std::string_view suffix;
  int64_t factor;
};

constexpr int64_t kKibi = int64_t{1} << 10;
constexpr int64_t kMebi = int64_t{1} << 20;
constexpr int64_t kGibi = int64_t{1} << 30;
constexpr int64_t kTebi = int64_t{1} << 40;

constexpr std::array<Unit, 4> kTokenUnits{{{"", 1}, {"K", kKibi}, {"M", kMebi}, {"G", kGibi}}};
constexpr std::array<Unit, 14> kByteUnits{{{"", 1},
                                           {"B", 1},
                                           {"K", kKibi},
                                           {"M", kMebi},
                                           {"G", kGibi},
                                           {"T", kTebi},
                                           {"KiB", kKibi},
                                           {"MiB", kMebi},
                                           {"GiB", kGibi},
                                           {"TiB", kTebi},
                                           {"KB", 1'000},
                                           {"MB", 1'000'000},
                                           {"GB", 1'000'000'000},
                                           {"TB", 1'000'000'000'000}}};

constexpr std::string_view kTokensExpected =
    "a length in tokens such as 65536, 512K, 2M (K = 1024, M = 1024 K) or 1e6";
constexpr std::string_view kBytesExpected =
    "a size such as 1024, 64MiB, 80G or 80GiB (powers of two), or 80GB (powers of ten)";

// The beginning of the user's text, on one line.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 60)) {
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return text.size() > 60 ? result + "..." : result;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_same_unit(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

// The first digit of the exponent at `end`; `end` if there is no exponent.
size_t first_of_exponent(std::string_view text, size_t end) {
  if (end >= text.size() || (text[end] != 'e' && text[end] != 'E')) return end;
  const size_t first = end + 1 < text.size() && text[end + 1] == '+' ? end + 2 : end + 1;
  return first < text.size() && is_digit(text[first]) ? first : end;
}

// Parses `digits[.digits][e[+]digits][ ]suffix` exactly: without floating point, so that 2^53 + 1
// keeps its last digit.
template <size_t N>
int64_t parse_quantity(std::string_view text, std::string_view what,
                       const std::array<Unit, N>& units, std::string_view expected, bool rounds) {
  const auto refuse = [&](std::string_view why) {
    return bad_input("{}: expected {}, got \"{}\"{}", what, expected, shown(text), why);
  };
  size_t end = 0;
  while (end < text.size() && is_digit(text[end])) ++end;
  if (end == 0) {
    throw refuse(text.starts_with('-') ? " (negative)" : "");
  }
  int64_t whole = 0;
  if (std::from_chars(text.data(), text.data() + end, whole).ec != std::errc{}) {
    throw refuse(" (too large)");
  }
  int64_t fraction = 0;
  int64_t scale = 1;
  if (end < text.size() && text[end] == '.') {
    const size_t first = ++end;
    for (; end < text.size() && is_digit(text[end]); ++end) {
      if (end - first == 6) throw refuse(" (more than six decimals)");
      fraction = fraction * 10 + (text[end] - '0');
      scale *= 10;
    }
    if (end == first) throw refuse("");
  }
  if (const size_t first = first_of_exponent(text, end); first != end) {
    int64_t exponent = 0;
    end = first;
    while (end < text.size() && is_digit(text[end])) ++end;
    const bool is_read =
        std::from_chars(text.data() + first, text.data() + end, exponent).ec == std::errc{};
    if (!is_read || exponent > 18) throw refuse(" (too large)");
    for (; exponent > 0; --exponent) {
      fraction *= 10;
      if (__builtin_mul_overflow(whole, int64_t{10}, &whole) ||
          __builtin_add_overflow(whole, fraction / scale, &whole)) {
        throw refuse(" (too large)");
      }
      fraction %= scale;
    }
  }
  std::string_view suffix = text.substr(end);
  if (suffix.size() > 1 && suffix.front() == ' ') suffix.remove_prefix(1);
  for (const Unit& unit : units) {
    if (!is_same_unit(unit.suffix, suffix)) continue;
    // fraction < 10^6 and factor <= 2^40, so the product stays below 2^60.
    const int64_t part = fraction * unit.factor;
    if (part % scale != 0 && !(rounds && unit.factor > 1)) throw refuse(" (not a whole number)");
    int64_t result = 0;
    if (__builtin_mul_overflow(whole, unit.factor, &result) ||
        __builtin_add_overflow(result, part / scale, &result)) {
      throw refuse(" (too large)");
    }
    if (result == 0) throw refuse(" (zero)");
    return result;
  }
  throw refuse("");
}

// `value` with at most `digits` digits, but never fewer than the integer part needs: with 3, 1.25,
// 25.0, 123, 1023.
std::string figures(double value, int digits) {
  int decimals = digits - 1;
  for (double limit = 10; decimals > 0; limit *= 10, --decimals) {
    const double half = 0.5 * std::pow(10.0, -decimals);
    if (value + half < limit) break;
  }
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace

int64_t parse_tokens(std::string_view text, std::string_view what) {
  return parse_quantity(text, what, kTokenUnits, kTokensExpected, false);
}

int64_t parse_bytes(std::string_view text, std::string_view what) {
  return parse_quantity(text, what, kByteUnits, kBytesExpected, true);
}

std::string counted(int64_t count, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", grouped(count), count == 1 ? one : several);
}

std::string grouped(int64_t count) {
  std::string digits = fmt::format("{}", count);
  const ptrdiff_t first = count < 0 ? 1 : 0;
  for (auto at = static_cast<ptrdiff_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string count_tokens(int64_t tokens) {
  return tokens == 1 ? "1 token" : format_tokens(tokens) + " tokens";
}

std::string format_tokens(int64_t tokens) {
  if (tokens >= kGibi && tokens % (kGibi / 8) == 0) {
    return fmt::format("{}G", static_cast<double>(tokens) / kGibi);
  }
  // 2^17 tokens are 0.125M and 2^9 are 0.5K: multiples of these have a short exact form.
  if (tokens >= kMebi && tokens % (kMebi / 8) == 0) {
    return fmt::format("{}M", static_cast<double>(tokens) / kMebi);
  }
  if (tokens >= kKibi && tokens < kMebi * 8 && tokens % (kKibi / 2) == 0) {
    return fmt::format("{}K", static_cast<double>(tokens) / kKibi);
  }
  return fmt::format("{}", tokens);
}

std::string format_bytes(int64_t bytes) {
  if (bytes < 0) return fmt::format("-{}", format_bytes(bytes == INT64_MIN ? INT64_MAX : -bytes));
  if (bytes < kKibi) return fmt::format("{} B", bytes);
  constexpr std::array<std::string_view, 6> names{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / kKibi;
  size_t unit = 0;
  // 1023.5 and more would print as 1024, which is 1.00 of the next unit.
  while (value >= 1023.5 && unit + 1 < names.size()) {
    value /= kKibi;
    ++unit;
  }
  return fmt::format("{} {}", figures(value, 3), names[unit]);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds)) return fmt::format("{} s", seconds);
  if (seconds < 0) return fmt::format("-{}", format_seconds(-seconds));
  if (seconds == 0) return "0 s";
  if (seconds < 0.9995e-6) return figures(seconds * 1e9, 3) + " ns";
  if (seconds < 0.9995e-3) return figures(seconds * 1e6, 3) + " us";
  if (seconds < 0.9995) return figures(seconds * 1e3, 3) + " ms";
  if (seconds < 119.5) return figures(seconds, 3) + " s";
  if (seconds < 3599.5) {
    const auto whole = static_cast<int64_t>(std::llround(seconds));
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  if (seconds >= 1e15) return fmt::format("{:.2e} s", seconds);
  const int64_t minutes = std::llround(seconds / 60);
  if (minutes < 48 * 60) return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
  const int64_t hours = std::llround(seconds / 3600);
  return fmt::format("{} d {:02} h", hours / 24, hours % 24);
}

std::string format_rate(double per_second, std::string_view unit) {
  if (!std::isfinite(per_second)) return fmt::format("{} {}", per_second, unit);
  if (per_second < 0) return fmt::format("-{}", format_rate(-per_second, unit));
  constexpr std::array<std::string_view, 7> prefixes{"", "k", "M", "G", "T", "P", "E"};
  size_t prefix = 0;
  while (per_second >= 999.5 && prefix + 1 < prefixes.size()) {
    per_second /= 1000;
    ++prefix;
  }
  return fmt::format("{} {}{}", figures(per_second, 3), prefixes[prefix], unit);
}

int64_t checked_mul(int64_t a, int64_t b, std::string_view what) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    throw bad_input("{}: {} * {} does not fit in 64 bits; the sizes are too large", what, a, b);
  }
  return result;
}

int64_t checked_add(int64_t a, int64_t b, std::string_view what) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    throw bad_input("{}: {} + {} does not fit in 64 bits; the sizes are too large", what, a, b);
  }
  return result;
}

}  // namespace longspan
