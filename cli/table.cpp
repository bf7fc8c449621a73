#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/terminal.h"
#include "cli/text.h"

namespace longspan::cli {
namespace {

constexpr size_t kIndent = 2;    // of every column
constexpr size_t kWrapped = 20;  // least width of wrapped cells, if columns can be left out

size_t longest_word(std::string_view text) {
  size_t longest = 0;
  for (const std::string& word : wrapped(text, 1)) longest = std::max(longest, width_of(word));
  return longest;
}

// The width a column needs: with all cells on one line, and wrapped.
struct Need {
  size_t natural = 0, wrapped = 0;
};

// Chooses the widths of the columns; a width of 0 means that the column is left out.
class Fitting {
 public:
  Fitting(const std::vector<Table::Column>& columns, const std::vector<Need>& needs, size_t width)
      : columns_(columns), needs_(needs), shown_(columns.size(), true), width_(width) {}

  std::vector<size_t> widths() {
    while (total(true) > width_ && leave_one_out()) {
    }
    const bool roomy = total(true) <= width_;
    std::vector<size_t> widths(columns_.size(), 0);
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (shown_[c]) widths[c] = least(c, roomy);
    }
    spread(widths);
    return widths;
  }

 private:
  size_t least(size_t c, bool roomy) const {
    return roomy ? std::min(needs_[c].natural, std::max(needs_[c].wrapped, kWrapped))
                 : needs_[c].wrapped;
  }
  size_t total(bool roomy) const {
    size_t sum = 0;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (shown_[c]) sum += kIndent + least(c, roomy);
    }
    return sum;
  }
  // Leaves out one column, never the first, which names the row. False if none can be left out.
  bool leave_one_out() {
    size_t which = 0;
    for (size_t c = 1; c < columns_.size(); ++c) {
      if (shown_[c] && columns_[c].drop > 0 && columns_[c].drop >= columns_[which].drop) which = c;
    }
    if (which == 0 && total(false) > width_) {
      for (size_t c = 1; c < columns_.size(); ++c) {
        if (shown_[c]) which = c;
      }
      if (std::count(shown_.begin(), shown_.end(), true) <= 2) return false;
    }
    if (which == 0) return false;
    shown_[which] = false;
    return true;
  }
  // Distributes the remaining width over columns narrower than their cells, narrowest first.
  void spread(std::vector<size_t>& widths) const {
    size_t used = 0;
    for (const size_t w : widths) used += w == 0 ? 0 : kIndent + w;
    while (used < width_) {
      size_t narrow = widths.size();
      for (size_t c = 0; c < widths.size(); ++c) {
        if (widths[c] == 0 || widths[c] >= needs_[c].natural) continue;
        if (narrow == widths.size() || widths[c] < widths[narrow]) narrow = c;
      }
      if (narrow == widths.size()) return;
      ++widths[narrow];
      ++used;
    }
  }

  const std::vector<Table::Column>& columns_;
  const std::vector<Need>& needs_;
  std::vector<bool> shown_;
  size_t width_;
};

}  // namespace

void Table::add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

void Table::print() const {
  std::vector<Need> needs(columns_.size());
  for (size_t c = 0; c < columns_.size(); ++c) {
    const auto count = [&](const std::string& text) {
      const size_t width = width_of(text);
      needs[c].natural = std::max(needs[c].natural, width);
      needs[c].wrapped = std::max(needs[c].wrapped, columns_[c].right ? width : longest_word(text));
    };
    count(columns_[c].heading);
    for (const auto& row : rows_) count(row[c]);
  }
  const std::vector<size_t> widths = Fitting(columns_, needs, text_width()).widths();

  const auto lines_of = [&](const auto& cell) {
    std::vector<std::vector<std::string>> cells(columns_.size());
    size_t height = 1;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (widths[c] == 0) continue;
      cells[c] = wrapped(cell(c), widths[c]);
      height = std::max(height, cells[c].size());
    }
    std::string text;
    for (size_t i = 0; i < height; ++i) {
      std::string line;
      for (size_t c = 0; c < columns_.size(); ++c) {
        if (widths[c] == 0) continue;
        const std::string part = i < cells[c].size() ? cells[c][i] : std::string();
        const std::string space(widths[c] - std::min(widths[c], width_of(part)), ' ');
        line += std::string(kIndent, ' ') + (columns_[c].right ? space + part : part + space);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + '\n';
    }
    return text;
  };
  std::string heading = lines_of([&](size_t c) { return columns_[c].heading; });
  heading.pop_back();
  fmt::print("{}\n", bold(heading));
  for (const auto& row : rows_) fmt::print("{}", lines_of([&](size_t c) { return row[c]; }));

  std::string left_out;
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (widths[c] > 0) continue;
    left_out += (left_out.empty() ? "" : ", ") + columns_[c].heading;
  }
  if (!left_out.empty()) say("  (not shown: {}; --wide shows all)\n", left_out);
}

}  // namespace longspan::cli
