#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/comm/mpi.h"

namespace longspan::cli {
namespace {

// Whether `descriptor` is a terminal that supports escapes and no MPI launcher started the process:
// launchers give ranks terminals of their own even if their output goes to a log file.
bool is_screen(int descriptor) {
  const char* kind = std::getenv("TERM");
  const bool dumb = kind != nullptr && std::string_view(kind) == "dumb";
  return !dumb && !launched_by_mpi() && ::isatty(descriptor) == 1;
}

bool progress_lines = false;

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

void set_progress_lines() { progress_lines = true; }

ProgressBar::ProgressBar()
    : bar_(is_screen(STDERR_FILENO)),
      begin_(Clock::now()),
      next_(begin_ + std::chrono::seconds(1)) {}

ProgressBar::~ProgressBar() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
}

// Whether to show progress now.
bool ProgressBar::is_due() {
  if ((!bar_ && !progress_lines) || Clock::now() < next_) return false;
  next_ = Clock::now() + (bar_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000));
  drawn_ |= bar_;
  return true;
}

void ProgressBar::show(std::string_view what, double share) {
  if (!is_due()) return;
  share = std::clamp(share, 0.0, 1.0);
  if (!bar_) {
    fmt::print(stderr, "longspan: {}: {:.0f} %\n", what, share * 100);
    return;
  }
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(share * kWidth);
  fmt::print(stderr, "\r[{}{}] {:3.0f}%  {}\033[K", std::string(filled, '#'),
             std::string(kWidth - filled, '.'), share * 100, what);
  std::fflush(stderr);
}

double ProgressBar::seconds() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

void ProgressBar::show_time(std::string_view what) {
  if (!is_due()) return;
  if (bar_) {
    fmt::print(stderr, "\r{}: {:.0f} s\033[K", what, seconds());
    std::fflush(stderr);
  } else {
    fmt::print(stderr, "longspan: {}: {:.0f} s\n", what, seconds());
  }
}

}  // namespace longspan::cli
