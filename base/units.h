// Parses and formats quantities for users: lengths in tokens, sizes in bytes, durations and rates.
// Pure functions, safe from any thread.
//
// Lengths are "65536", "512K", "2M", "1.5M" (K = 1024, M = 1024^2) or "1e6". Sizes are "1024",
// "64MiB", "80GiB" or "80G" (powers of two), or "80GB" (powers of ten): GiB and GB differ. The case
// of a suffix does not matter, and a space may precede it; up to six decimals are exact.
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <string_view>

namespace longspan {

/// Tokens from "65536", "512K", "2M" or "1e6". Throws bad_input naming `what` for anything else,
/// for zero or less, for part of a token ("0.3K") and for a value beyond int64.
int64_t parse_tokens(std::string_view text, std::string_view what);

/// Bytes from "123", "4KiB", "64MiB", "80G", "1.5TiB", "80GB", "24e9". Throws bad_input naming
/// `what`, also for zero and for "1.5B". In larger units a fraction of a byte is rounded down.
int64_t parse_bytes(std::string_view text, std::string_view what);

std::string grouped(int64_t count);  ///< "8,030,261,248"
/// "1 rank", "2,048 ranks".
std::string counted(int64_t count, std::string_view one, std::string_view several);
std::string format_tokens(int64_t tokens);   ///< "64K", "1.5M", "1000": exact when short
std::string count_tokens(int64_t tokens);    ///< "64K tokens", "1 token"
std::string format_bytes(int64_t bytes);     ///< "63.9 MiB": up to four digits
std::string format_seconds(double seconds);  ///< "1.23 ms", "45.6 s", "2 h 03 min"
std::string format_rate(double per_second, std::string_view unit);  ///< "1.25 TFLOP/s", "25.0 GB/s"

/// a*b and a+b of non-negative counts. Throws bad_input naming `what` on int64 overflow.
int64_t checked_mul(int64_t a, int64_t b, std::string_view what);
int64_t checked_add(int64_t a, int64_t b, std::string_view what);

/// The smallest multiple of `multiple` that is >= value. REQUIRES: value >= 0, multiple > 0.
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  assert(value >= 0 && multiple > 0);
  return (value + multiple - 1) / multiple * multiple;
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace longspan
