#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "engine/comm/mpi.h"

namespace longspan::cli {
namespace {

// A terminal that understands escapes. A launcher of MPI gives its ranks terminals of their own
// whatever its output goes to, often a log file.
bool is_screen(int descriptor) {
  const char* kind = std::getenv("TERM");
  const bool dumb = kind != nullptr && std::string_view(kind) == "dumb";
  return !dumb && !launched_by_mpi() && ::isatty(descriptor) == 1;
}

bool colours() {
  static const bool enabled = [] {
    const char* no_color = std::getenv("NO_COLOR");
    const bool refused = no_color != nullptr && *no_color != '\0';
    return !refused && is_screen(STDOUT_FILENO);
  }();
  return enabled;
}

}  // namespace

std::string bold(std::string_view text) {
  return colours() ? fmt::format("\033[1m{}\033[0m", text) : std::string(text);
}

void Table::add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

void Table::print() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].heading.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  const auto line = [&](const auto& cell) {
    std::string text;
    for (size_t c = 0; c < columns_.size(); ++c) {
      text += columns_[c].right ? fmt::format("  {:>{}}", cell(c), widths[c])
                                : fmt::format("  {:<{}}", cell(c), widths[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  fmt::print("{}\n", bold(line([&](size_t c) { return columns_[c].heading; })));
  for (const auto& row : rows_) fmt::print("{}\n", line([&](size_t c) { return row[c]; }));
}

ProgressBar::ProgressBar()
    : enabled_(is_screen(STDERR_FILENO)), next_(Clock::now() + std::chrono::seconds(1)) {}

ProgressBar::~ProgressBar() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::show(std::string_view what, double share) {
  if (!enabled_ || Clock::now() < next_) return;
  next_ = Clock::now() + std::chrono::milliseconds(100);
  drawn_ = true;
  constexpr int kWidth = 30;
  share = std::clamp(share, 0.0, 1.0);
  const int filled = static_cast<int>(share * kWidth);
  fmt::print(stderr, "\r[{}{}] {:3.0f}%  {}\033[K", std::string(filled, '#'),
             std::string(kWidth - filled, '.'), share * 100, what);
  std::fflush(stderr);
}

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

std::string counted(int64_t count, std::string_view one, std::string_view several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

}  // namespace longspan::cli
