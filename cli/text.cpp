#include "cli/text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

namespace longspan::cli {
namespace {

constexpr size_t kLeast = 40, kOfFiles = 100;
constexpr size_t kMostIndent = 40;  // of a continuation line
constexpr std::string_view kEscape = "\033[";

bool wide = false;

size_t found_width() {
  if (const char* columns = std::getenv("COLUMNS")) {
    const std::string_view text = columns;
    size_t width = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), width);
    if (error == std::errc() && stop == text.data() + text.size() && width > 0) return width;
  }
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kOfFiles;
}

// Where a continuation line begins: below the value of "  key    value", else indented by two more.
size_t indent_of(std::string_view line) {
  const size_t first = line.find_first_not_of(' ');
  if (first == line.npos) return 0;
  const size_t gap = line.find("  ", first);
  if (first > 0 && gap != line.npos) {
    const size_t value = line.find_first_not_of(' ', gap);
    if (value != line.npos && value <= kMostIndent) return value;
  }
  return first + 2;
}

// Whether a word is a unit that stays with the number before it: "8.63 s", "15.5 %".
bool is_unit(std::string_view before, std::string_view word) {
  constexpr size_t kLongestUnit = 3;
  if (before.empty() || before.back() < '0' || before.back() > '9') return false;
  return word.starts_with('%') || word.find_first_of("),.;:") <= kLongestUnit ||
         word.size() <= kLongestUnit;
}

}  // namespace

size_t text_width() {
  static const size_t found = std::max(kLeast, found_width());
  return wide ? std::numeric_limits<size_t>::max() : found;
}

void set_wide() { wide = true; }
bool is_wide() { return wide; }

size_t width_of(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(kEscape)) {
      i = std::min(text.find('m', i), text.size() - 1);
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

std::vector<std::string> wrapped(std::string_view text, size_t width) {
  std::vector<std::string> lines(1);
  size_t begin = 0;
  while (begin < text.size()) {
    // A word with the spaces before it: spaces inside a line are kept.
    const size_t word = std::min(text.find_first_not_of(' ', begin), text.size());
    size_t end = std::min(text.find(' ', word), text.size());
    const size_t next = std::min(text.find(' ', end + 1), text.size());
    if (end < next &&
        is_unit(text.substr(word, end - word), text.substr(end + 1, next - end - 1))) {
      end = next;
    }
    const std::string_view with_spaces = text.substr(begin, end - begin);
    if (word > begin && width_of(lines.back()) + width_of(with_spaces) > width) {
      if (!lines.back().empty()) lines.emplace_back();
      lines.back() += text.substr(word, end - word);
    } else {
      lines.back() += with_spaces;
    }
    begin = end;
  }
  return lines;
}

void print_wrapped(std::string_view lines) {
  std::string out;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (width_of(line) <= text_width() || line.find_first_not_of(' ') == line.npos) {
      out.append(line).push_back('\n');
      continue;
    }
    const size_t indent = indent_of(line), own = line.find_first_not_of(' ');
    const std::string first(line.substr(0, own));
    const size_t room = text_width() - std::min(indent, text_width() / 2);
    // The first line may be indented less than those below it.
    const std::string key(line.substr(own, std::max(indent, own) - own));
    bool begins = true;
    for (const std::string& part :
         wrapped(indent > own + 2 ? line.substr(indent) : line.substr(own), room)) {
      if (begins && indent > own + 2) {
        out.append(first).append(key).append(part);
      } else {
        out.append(begins ? own : indent, ' ').append(part);
      }
      out.push_back('\n');
      begins = false;
    }
  }
  fmt::print("{}", out);
}

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

}  // namespace longspan::cli
