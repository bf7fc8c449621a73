#include <fmt/format.h>
#include <cassert>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "planner/schedule/io/picture.h"
#include "planner/schedule/io/picture_rows.h"

namespace longspan {
namespace {

constexpr int32_t kIdleColumns = 8;    // " 100.0 %"
constexpr int32_t kWidthForIdle = 60;  // narrower pictures leave these columns to the passes

// Idle time that is longer is not part of a block, shorter blocks are joined.
constexpr double kGapColumns = 1.5, kLeastColumns = 2;

constexpr char fill_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return '=';
    case ActionKind::backward:
      return '#';
    case ActionKind::backward_input:
      return '+';
    case ActionKind::backward_weight:
      return '-';
    default:
      return ':';
  }
}

char letter_of(const PicturePass& pass) {
  const int letter = word_of(pass.kind).front();
  return static_cast<char>(pass.shade == 0 ? letter : std::tolower(letter));
}

class TextPicture {
 public:
  TextPicture(const Schedule& schedule, const LinkedActions& linked, const ScheduleTiming& timing,
              int32_t width)
      : slices_(schedule.slices),
        timing_(timing),
        rows_(picture_rows(schedule, linked, timing)),
        width_(width),
        shows_idle_(width >= kWidthForIdle && timing.cost > 0) {
    const std::string last = fmt::format("{}", rows_.steps.size() - 1);
    margin_ = last.size();
    const auto columns = static_cast<double>(width - static_cast<int32_t>(margin_) - 2 -
                                             (shows_idle_ ? kIdleColumns : 0));
    double shortest = timing.makespan;
    double shortest_of[2] = {shortest, shortest};  // of layers, of a cut vocabulary
    std::vector<double> lengths;                   // of passes
    size_t longest_label = 1;
    for (const PictureRow& row : rows_.steps) {
      for (const PictureStep& step : row) {
        const double length = (step.end - step.start) / static_cast<double>(step.passes.size());
        shortest = std::min(shortest, length);
        for (const PicturePass& pass : step.passes) {
          lengths.push_back(length);
          double& own = shortest_of[of_vocabulary(pass.kind)];
          own = std::min(own, length);
          longest_label = std::max(longest_label, label_of(pass, slices_).size());
        }
      }
    }
    if (lengths.empty()) return;
    // If the width allows, the shortest pass has room for its letter and label, and no more.
    const auto wanted = static_cast<double>(longest_label + 1);
    scale_ = std::min(columns / timing.makespan, wanted / shortest);
    const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
    std::nth_element(lengths.begin(), middle, lengths.end());
    // Rounding must not hide a label with exactly the room that it needs.
    const auto has = [&](double length, double room) { return length * scale_ + 1e-9 >= room; };
    for (const int group : {0, 1}) has_labels_[group] = has(shortest_of[group], wanted);
    in_blocks_ = !has_labels_[0] && !has(*middle, 2);
  }

  std::string lines() const {
    std::vector<std::vector<PictureBlock>> blocks;
    if (in_blocks_) blocks = blocks_of(rows_.steps, kGapColumns / scale_, kLeastColumns / scale_);
    std::string text;
    for (size_t rank = 0; rank < rows_.steps.size(); ++rank) {
      std::string line(column_of(timing_.makespan), '.');
      if (in_blocks_) {
        write_blocks(line, blocks[rank]);
      } else {
        write_passes(line, rows_.steps[rank]);
      }
      if (shows_idle_) {
        const double idle = 1 - timing_.ranks[rank].busy / timing_.cost;
        line += fmt::format("{:>{}.1f} %", std::max(0.0, 100 * idle), kIdleColumns - 2);
      }
      text += fmt::format("{:>{}}  {}\n", rank, margin_, line);
    }
    return text;
  }

  // The legend of these lines.
  std::string legend(const std::string& lines) const {
    std::vector<std::string> items;
    std::string fills;
    bool has_later = false;  // passes with small letters
    for (const ActionKind kind : rows_.kinds()) {
      if (!is_compute(kind)) continue;
      items.push_back(fmt::format("{} {}", word_of(kind), meaning_of(kind)));
      const char fill = fill_of(kind);
      if (fills.find(fill) == fills.npos && lines.find(fill) != lines.npos)
        fills += fmt::format("{} ", fill);
    }
    for (const PicturePass& look : rows_.looks) has_later |= look.shade > 0;
    if (has_later) {
      items.push_back(
          fmt::format("small letters: {}{}", in_blocks_ ? "only " : "", rows_.later_meaning));
    }
    if (in_blocks_) {
      items.emplace_back("passes are narrower than 2 columns: those that repeat take turns");
    } else if (!fills.empty()) {
      items.push_back(fills + "the pass continues");
    }
    if (has_labels_[0]) {
      items.emplace_back(slices_ > 1 ? "numbers: microbatch.slice" : "numbers: microbatches");
    }
    items.emplace_back(". idle");
    if (shows_idle_) items.emplace_back("%: idle part of the cost");
    const std::string indent(margin_ + 2, ' ');
    std::string text, line = indent;
    for (const std::string& item : items) {
      for (size_t begin = 0; begin < item.size();) {
        size_t end = std::min(item.find(' ', begin), item.size());
        const std::string gap = line.size() == indent.size() ? "" : begin == 0 ? "   " : " ";
        // Items stay whole where they fit into a line.
        const size_t needs =
            begin == 0 ? std::min(item.size(), width_ - indent.size()) : end - begin;
        if (!gap.empty() && line.size() + gap.size() + needs > width_) {
          text += line + "\n";
          line = indent;
        } else {
          line += gap;
        }
        line.append(item, begin, end - begin);
        begin = std::min(end + 1, item.size());
      }
    }
    return text + line + "\n";
  }

 private:
  size_t column_of(double time) const { return static_cast<size_t>(std::lround(time * scale_)); }

  void write_passes(std::string& line, const PictureRow& steps) const {
    for (const PictureStep& step : steps) {
      const double length = (step.end - step.start) / static_cast<double>(step.passes.size());
      for (size_t part = 0; part < step.passes.size(); ++part) {
        const PicturePass& pass = step.passes[part];
        const double start = step.start + length * static_cast<double>(part);
        const size_t from = column_of(start), room = column_of(start + length) - from;
        if (room == 0) continue;
        std::string field(1, letter_of(pass));
        if (has_labels_[of_vocabulary(pass.kind)]) field += label_of(pass, slices_);
        field.resize(room, fill_of(pass.kind));
        line.replace(from, room, field);
      }
    }
  }

  void write_blocks(std::string& line, const std::vector<PictureBlock>& blocks) const {
    std::string letters;      // of the block
    size_t turn = 0, to = 0;  // of the next letter, and the end of the block
    for (const PictureBlock& block : blocks) {
      std::string own;
      for (const PicturePass& pass : block.pattern) own += letter_of(pass);
      // A block that repeats the same as the one before continues it.
      if (own != letters || column_of(block.start) != to) turn = 0;
      letters = own;
      to = column_of(block.end);
      for (size_t column = column_of(block.start); column < to; ++column) {
        line[column] = letters[turn++ % letters.size()];
      }
    }
  }

  int32_t slices_;
  const ScheduleTiming& timing_;
  PictureRows rows_;
  size_t width_;
  bool shows_idle_;
  size_t margin_ = 1;                    // columns of the ranks' numbers
  double scale_ = 0;                     // columns by time
  bool has_labels_[2] = {false, false};  // passes of layers, of a cut vocabulary: all or none
  bool in_blocks_ = false;
};

}  // namespace

std::string text_picture(const Schedule& schedule, const LinkedActions& linked,
                         const ScheduleTiming& timing, int32_t width) {
  assert(width >= 20);
  if (timing.makespan <= 0) return {};
  const TextPicture picture(schedule, linked, timing, width);
  const std::string lines = picture.lines();
  return lines + picture.legend(lines);
}

}  // namespace longspan
