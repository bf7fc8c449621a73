// Text for a person on standard output: as wide as the terminal, and no wider.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan::cli {

/// Columns that a line may take: $COLUMNS, else the width of the terminal, else 100; at least 40.
/// Without limit after set_wide().
size_t text_width();
/// Tables with all columns and lines of any length, from here on: --wide.
void set_wide();

/// Columns that `text` takes on a screen: escapes take none, a UTF-8 character takes one.
size_t width_of(std::string_view text);

/// `text` in lines of at most `width` columns, broken at spaces; a word that is longer is a line of
/// its own. Never empty.
std::vector<std::string> wrapped(std::string_view text, size_t width);

/// Prints lines that end with a newline each. A line that is wider than text_width() goes on below,
/// under its value where it is "  key    value", else indented by two more.
void print_wrapped(std::string_view lines);

template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  print_wrapped(fmt::format(format, std::forward<Args>(args)...));
}

/// "41.3 %" of a share.
std::string percent(double share);

/// "1 rank", "2 ranks".
std::string counted(int64_t count, std::string_view one, std::string_view several);

/// "8,030,261,248".
std::string grouped(int64_t count);

}  // namespace longspan::cli
