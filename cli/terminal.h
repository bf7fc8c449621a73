// What a person sees: aligned tables, a progress bar, and colour where there is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::cli {

/// `text` in bold where standard output is a terminal, TERM is not "dumb", NO_COLOR is not set and
/// no launcher of MPI started this process; otherwise as it is.
std::string bold(std::string_view text);

/// A table with a heading; numbers stand right, words left. Widths follow the contents.
class Table {
 public:
  struct Column {
    std::string heading;
    bool right = true;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// REQUIRES: as many cells as columns.
  void add(std::vector<std::string> cells);
  /// Writes it to standard output, indented by two.
  void print() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// A bar on standard error, only on a terminal (as of bold()) and only once a second has passed;
/// gone when the object is. Used from one thread.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// `share` in [0, 1]; cheap to call often.
  void show(std::string_view what, double share);

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point next_;
};

/// "41.3 %" of a share.
std::string percent(double share);

/// "1 rank", "2 ranks".
std::string counted(int64_t count, std::string_view one, std::string_view several);

}  // namespace longspan::cli
