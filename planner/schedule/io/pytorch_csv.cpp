#include "planner/schedule/io/pytorch_csv.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"

namespace longspan {
namespace {

using Kind = ActionKind;

constexpr std::string_view kPair = "OVERLAP_F_B";

// A cell as written, before its dialect is known.
struct Cell {
  Action action;
  std::string_view word;
};

class Reader {
 public:
  Reader(std::string_view text, std::string_view name, std::string_view expected)
      : text_(text), name_(name), expected_(expected) {}

  PipelineCsv run() {
    csv_.carriage_returns = text_.find("\r\n") != std::string_view::npos;
    csv_.ends_with_line_end = text_.empty() || text_.back() == '\n';
    while (!text_.empty()) {
      std::string_view line = text_.substr(0, text_.find('\n'));
      text_.remove_prefix(std::min(line.size() + 1, text_.size()));
      if (csv_.carriage_returns) {
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      }
      read_line(line);
    }
    translate();
    if (csv_.schedule.ranks.empty()) throw bad_input("{}: no rank's actions in it", name_);
    return std::move(csv_);
  }

 private:
  void read_line(std::string_view line) {
    cells_.emplace_back();
    csv_.idle.emplace_back(1, 0);
    cell_number_ = 0;
    for (bool more = true; more;) {
      const size_t comma = line.find(',');
      more = comma != std::string_view::npos;
      cell_ = line.substr(0, comma);
      line.remove_prefix(more ? comma + 1 : line.size());
      ++cell_number_;
      if (cell_.empty()) {
        ++csv_.idle.back().back();
      } else {
        read_cell();
      }
    }
  }

  void read_cell() {
    if (cell_.front() != '(') return add(read_action(cell_), false);
    const size_t end = cell_.find(')');
    if (end == std::string_view::npos || cell_.substr(end + 1) != kPair) refuse();
    std::string_view inside = cell_.substr(1, end - 1);
    for (bool more = true; more;) {
      const size_t semicolon = inside.find(';');
      more = semicolon != std::string_view::npos;
      add(read_action(inside.substr(0, semicolon)), more);
      inside.remove_prefix(more ? semicolon + 1 : inside.size());
    }
  }

  void add(Cell cell, bool with_next) {
    cell.action.with_next = with_next;
    cells_.back().push_back(cell);
    csv_.idle.back().push_back(0);
  }

  Cell read_action(std::string_view text) const {
    Cell cell;
    cell.action.stage = number(text);
    const bool sliced = !text.empty() && text.front() == '.';
    if (sliced) {
      text.remove_prefix(1);
      cell.action.slice = number(text);
    }
    const auto end =
        std::find_if(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    cell.word = text.substr(0, end - text.begin());
    text.remove_prefix(cell.word.size());
    const std::optional<Kind> kind = kind_of(cell.word);
    if (!kind && cell.word != "BW") refuse();
    const bool of_microbatch = !kind || has_microbatch(*kind);
    if (of_microbatch) cell.action.microbatch = number(text);
    if (!text.empty() || (sliced && !of_microbatch)) refuse();
    return cell;
  }

  // Removes and returns the number at the start of `text`.
  int32_t number(std::string_view& text) const {
    int32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 0 || value > 1 << 20) refuse();
    text.remove_prefix(end - text.data());
    return value;
  }

  [[noreturn]] void refuse() const {
    throw bad_input("{}: line {}, cell {}: \"{}\" is no action; expected {}", name_, cells_.size(),
                    cell_number_, cell_, expected_);
  }

  bool any(std::string_view word) const {
    return std::any_of(cells_.begin(), cells_.end(), [&](const std::vector<Cell>& cells) {
      return std::any_of(cells.begin(), cells.end(),
                         [&](const Cell& cell) { return cell.word == word; });
    });
  }

  void translate() {
    csv_.old_dialect = any("BW") || (any("W") && !any("I"));
    if (csv_.old_dialect && any("I")) {
      throw bad_input(
          "{}: BW is of PyTorch's old dialect, where B is a gradient of inputs, and I of the new; "
          "expected one of them",
          name_);
    }
    Schedule& s = csv_.schedule;
    int32_t last_stage = 0, last_microbatch = 0, last_slice = 0;
    for (const std::vector<Cell>& cells : cells_) {
      s.ranks.emplace_back();
      for (const Cell& cell : cells) {
        Action action = cell.action;
        action.kind = kind_in_dialect(cell.word);
        last_stage = std::max(last_stage, action.stage);
        last_microbatch = std::max(last_microbatch, action.microbatch);
        last_slice = std::max(last_slice, action.slice);
        s.ranks.back().push_back(action);
      }
    }
    s.stages = last_stage + 1;
    s.microbatches = last_microbatch + 1;
    s.slices = last_slice + 1;
  }

  Kind kind_in_dialect(std::string_view word) const {
    if (csv_.old_dialect && word == "BW") return Kind::backward;
    if (csv_.old_dialect && word == "B") return Kind::backward_input;
    return *kind_of(word);
  }

  std::string_view text_, name_, expected_;
  PipelineCsv csv_;
  std::vector<std::vector<Cell>> cells_;  // by line
  std::string_view cell_;
  int64_t cell_number_ = 0;
};

std::string cell_of(const Action& action, const PipelineCsv& csv) {
  std::string text = to_string(action, csv.schedule.slices);
  if (!csv.old_dialect) return text;
  if (action.kind == Kind::backward) return text.insert(text.find('B') + 1, 1, 'W');
  if (action.kind == Kind::backward_input) text[text.find('I')] = 'B';
  return text;
}

}  // namespace

PipelineCsv read_pipeline_csv(std::string_view text, std::string_view name,
                              std::string_view expected) {
  return Reader(text, name, expected).run();
}

std::string write_pipeline_csv(const PipelineCsv& csv) {
  std::string text;
  const std::string_view line_end = csv.carriage_returns ? "\r\n" : "\n";
  for (size_t rank = 0; rank < csv.schedule.ranks.size(); ++rank) {
    if (rank > 0) text += line_end;
    std::string line;
    bool joined = false;
    const std::vector<Action>& list = csv.schedule.ranks[rank];
    for (size_t i = 0; i < list.size(); ++i) {
      line.append(csv.idle[rank][i], ',');
      if (list[i].with_next && !joined) line += '(';
      line += cell_of(list[i], csv);
      if (joined && !list[i].with_next) line.append(")").append(kPair);
      joined = list[i].with_next;
      line += joined ? ';' : ',';
    }
    line.append(csv.idle[rank].back(), ',');
    if (!line.empty()) line.pop_back();  // commas are between cells
    text += line;
  }
  if (csv.ends_with_line_end) text += line_end;
  return text;
}

}  // namespace longspan
