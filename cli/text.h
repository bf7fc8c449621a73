// Text on standard output, wrapped to the width of the terminal.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan::cli {

/// The width of a line in columns: $COLUMNS, else the width of the terminal, else 100; at least 40.
/// Unlimited after set_wide().
size_t text_width();
/// From now on, prints tables with all columns and lines of any length: --wide.
void set_wide();
/// Whether set_wide() was called.
bool is_wide();

/// Columns that `text` takes on a screen: 0 for an escape, 1 for a UTF-8 character.
size_t width_of(std::string_view text);

/// `text` in lines of at most `width` columns, broken at spaces; a longer word is a line of its
/// own. Never empty.
std::vector<std::string> wrapped(std::string_view text, size_t width);

/// Prints lines that end with a newline each. A line wider than text_width() is continued below,
/// under its value if it has the form "  key    value", else indented by two more.
void print_wrapped(std::string_view lines);

template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  print_wrapped(fmt::format(format, std::forward<Args>(args)...));
}

/// "41.3 %" of a share.
std::string percent(double share);

}  // namespace longspan::cli
