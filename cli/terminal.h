// Bold text and a progress bar, if there is a terminal.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace longspan::cli {

/// `text` in bold if standard output is a terminal, TERM is not "dumb", NO_COLOR is not set and no
/// MPI launcher started this process; otherwise unchanged.
std::string bold(std::string_view text);

/// From now on, prints progress as lines if there is no terminal: --progress.
void set_progress_lines();

/// Progress on standard error, shown once a second has passed. On a terminal (see bold()) it is a
/// bar that disappears with the object. Elsewhere it prints nothing, or a line every five seconds
/// after set_progress_lines(). Used by one thread at a time.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// `share` in [0, 1]; cheap to call often.
  void show(std::string_view what, double share);
  /// Shows seconds(), of work whose share is unknown.
  void show_time(std::string_view what);
  /// Since this object was made.
  double seconds() const;

 private:
  bool is_due();

  using Clock = std::chrono::steady_clock;
  bool bar_;
  bool drawn_ = false;
  Clock::time_point begin_, next_;
};

}  // namespace longspan::cli
