#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/schedule/io/picture.h"
#include "planner/schedule/io/picture_rows.h"
#include "planner/schedule/io/svg_layer.h"

namespace longspan {
namespace {

// Units of the drawing. On a page 7 inches wide, 10 units of text are 5 points.
constexpr double kWidth = 1000, kLeft = 56, kRight = 14, kTop = 34;
constexpr double kRow = 22, kLane = 9, kSpace = 4;  // a rank's passes, its copies, and below
constexpr double kText = 11, kLine = 18, kSwatch = 13;

// Narrower passes are drawn as blocks. Idle time that is wider is not part of a block; narrower
// blocks are joined.
constexpr double kLeastPass = 5, kMostIdle = 6, kLeastBlock = 8;

// Hues that all kinds of colour vision tell apart (after Okabe and Ito), and lightnesses that
// differ where they occur together, so that they are told apart in grey too.
constexpr Colour base_colour(ActionKind kind) {
  using Kind = ActionKind;
  switch (kind) {
    case Kind::forward:
      return {126, 184, 228};  // blue
    case Kind::backward:
      return {224, 112, 42};  // vermilion
    case Kind::backward_input:
      return {38, 148, 112};  // green
    case Kind::backward_weight:
      return {245, 228, 110};  // yellow
    case Kind::recompute:
      return {208, 228, 242};  // pale blue
    case Kind::vocabulary_forward:
      return {238, 190, 218};  // pink
    case Kind::vocabulary_backward:
      return {128, 48, 106};  // purple
    case Kind::embedding_forward:
      return {196, 214, 160};  // pale green
    case Kind::embedding_backward:
      return {96, 128, 56};  // green
    case Kind::offload:
      return {90, 90, 90};
    default:
      return {200, 200, 200};
  }
}

// Later stages are darker.
Colour colour_of(const PicturePass& pass, int32_t shades) {
  const double step = std::min(0.2, 0.5 / std::max(1, shades - 1));
  const double factor = 1 - step * pass.shade;
  const Colour base = base_colour(pass.kind);
  const auto darker = [&](int value) { return static_cast<int>(std::lround(value * factor)); };
  return {darker(base.red), darker(base.green), darker(base.blue)};
}

struct LabelStyle {
  Lettering lettering;
  bool has_word = false;  // "F3" instead of "3"
};

// In order of preference.
constexpr std::array kStyles = {LabelStyle{{11, false}, true},   LabelStyle{{11, false}, false},
                                LabelStyle{{9.5, false}, false}, LabelStyle{{8, false}, false},
                                LabelStyle{{10, true}, false},   LabelStyle{{8, true}, false}};

struct Placed {
  PicturePass pass;
  Box box;
};

bool overlap(const PictureRow& copies) {
  double end = 0;
  for (const PictureStep& copy : copies) {
    if (copy.start < end) return true;
    end = std::max(end, copy.end);
  }
  return false;
}

// A step of the axis of time that gives 5 to 10 of them: 1, 2 or 5 times a power of ten.
double tick_of(double end) {
  const double power = std::pow(10, std::floor(std::log10(end / 10)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (end / (power * factor) <= 10) return power * factor;
  }
  return power * 10;
}

class SvgPicture {
 public:
  SvgPicture(const Schedule& schedule, const LinkedActions& linked, const ScheduleTiming& timing)
      : slices_(schedule.slices), rows_(picture_rows(schedule, linked, timing)) {
    if (rows_.end > 0) scale_ = (kWidth - kLeft - kRight) / rows_.end;
    if (rows_.has_copies) {
      lanes_ = 1;
      if (std::any_of(rows_.copies.begin(), rows_.copies.end(), overlap)) lanes_ = 2;
    }
    bottom_ = kTop + height_of_rank() * static_cast<double>(rows_.steps.size());
  }

  std::string document(std::string_view title, std::string_view time_axis) {
    place();
    const bool in_blocks = are_narrow();
    SvgLayer passes, copies, labels;
    bool has_labels = false;
    if (in_blocks) {
      add_all_blocks(passes, copies, labels);
    } else {
      const auto of_layers = [](ActionKind kind) { return !of_vocabulary(kind); };
      add_boxes(passes, passes_);
      add_boxes(copies, copies_);
      has_labels = add_labels(labels, passes_, of_layers);
      add_labels(labels, passes_, of_vocabulary);
      add_labels(labels, copies_, of_layers);
    }
    const std::string drawn_labels = labels.group("labels");
    const std::string body = axis(time_axis) + rank_names() + passes.group("passes") +
                             copies.group("copies") + drawn_labels;
    std::vector<std::string_view> notes;
    if (has_labels) {
      notes.push_back(slices_ > 1 ? "numbers: microbatch.slice" : "numbers: microbatches");
    }
    if (in_blocks && drawn_labels.find('(') != drawn_labels.npos) {
      notes.push_back("8 (F B): eight times F, then B");
    }
    if (drawn_labels.find('+') != drawn_labels.npos) notes.push_back("8 F + 8 B: in any order");
    if (in_blocks) notes.push_back("heights: shares of time");
    double height = bottom_ + 40;
    const std::string explained = legend(height, notes);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"{}\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"{}\" y=\"20\" font-size=\"13\">{}</text>\n{}{}</svg>\n",
        kWidth, svg_number(height), kText, kLeft, svg_text(title), body, explained);
  }

 private:
  double height_of_rank() const { return kRow + kLane * lanes_ + kSpace; }
  double top_of(size_t rank) const { return kTop + height_of_rank() * static_cast<double>(rank); }
  double x_of(double time) const { return kLeft + time * scale_; }
  Colour colour(const PicturePass& pass) const { return colour_of(pass, rows_.shades); }

  // The lane of a copy: both kinds share one unless they run at the same time.
  Box lane_of(size_t rank, ActionKind kind) const {
    const int lane = lanes_ == 2 && kind == ActionKind::reload ? 1 : 0;
    return {0, top_of(rank) + kRow + kLane * lane, 0, kLane};
  }

  void place() {
    for (size_t rank = 0; rank < rows_.steps.size(); ++rank) {
      for (const PictureStep& step : rows_.steps[rank]) {
        const double height = kRow / static_cast<double>(step.passes.size());
        double y = top_of(rank);
        for (const PicturePass& pass : step.passes) {
          passes_.push_back(
              {pass, {x_of(step.start), y, (step.end - step.start) * scale_, height}});
          y += height;
        }
      }
      for (const PictureStep& copy : rows_.copies[rank]) {
        const PicturePass& pass = copy.passes.front();
        Box box = lane_of(rank, pass.kind);
        box.x = x_of(copy.start);
        box.width = (copy.end - copy.start) * scale_;
        copies_.push_back({pass, box});
      }
    }
  }

  std::string label(const Placed& placed, const LabelStyle& style) const {
    std::string text = label_of(placed.pass, slices_);
    return style.has_word ? fmt::format("{}{}", word_of(placed.pass.kind), text) : text;
  }

  // Whether at least half of the passes are too narrow to be told apart.
  bool are_narrow() const {
    const auto narrow = std::count_if(passes_.begin(), passes_.end(), [](const Placed& placed) {
      return !of_vocabulary(placed.pass.kind) && placed.box.width < kLeastPass;
    });
    const auto all = std::count_if(passes_.begin(), passes_.end(), [](const Placed& placed) {
      return !of_vocabulary(placed.pass.kind);
    });
    return all > 0 && 2 * narrow >= all;
  }

  // White lines between passes take a tenth of a narrow one.
  void add_box(SvgLayer& layer, const PicturePass& pass, const Box& box) const {
    const double line = std::min(0.8, box.width / 10);
    layer.add({box.x + line / 2, box.y, box.width - line, box.height}, colour(pass));
  }

  void add_boxes(SvgLayer& layer, const std::vector<Placed>& all) const {
    for (const Placed& placed : all) add_box(layer, placed.pass, placed.box);
  }

  // Labels all passes that `is_meant` selects, in the first style in which all fit, or none.
  // Returns whether it did.
  template <class IsMeant>
  bool add_labels(SvgLayer& layer, const std::vector<Placed>& all, IsMeant is_meant) const {
    for (const LabelStyle& style : kStyles) {
      const bool fits = std::all_of(all.begin(), all.end(), [&](const Placed& placed) {
        return !is_meant(placed.pass.kind) ||
               style.lettering.fits(label(placed, style), placed.box);
      });
      if (!fits) continue;
      for (const Placed& placed : all) {
        if (!is_meant(placed.pass.kind)) continue;
        layer.add_label(placed.box, label(placed, style), style.lettering,
                        text_colour_on(colour(placed.pass)));
      }
      return true;
    }
    return false;
  }

  void add_blocks(SvgLayer& layer, SvgLayer& labels, const std::vector<PictureBlock>& blocks,
                  Box box) const {
    const double y = box.y, height = box.height;
    for (const PictureBlock& block : blocks) {
      const double length = block.end - block.start;
      box = {x_of(block.start), y, length * scale_, 0};
      for (const PictureShare& share : block.shares) {
        box.height = height * share.time / length;
        add_box(layer, share.look, box);
        box.y += box.height;
      }
      add_block_label(labels, block, {box.x, y, box.width, height});
    }
  }

  // In the largest share, or across the shares if the text leaves enough of them visible.
  void add_block_label(SvgLayer& layer, const PictureBlock& block, const Box& box) const {
    const std::string text = label_of(block);
    const Lettering lettering{8.5, false};
    Box largest = box, across = box;
    const PictureShare* in = nullptr;
    largest.height = 0;
    double y = box.y;
    for (const PictureShare& share : block.shares) {
      const double height = box.height * share.time / (block.end - block.start);
      if (height > largest.height) {
        in = &share;
        largest.y = y;
        largest.height = height;
      }
      y += height;
    }
    if (in != nullptr && lettering.fits(text, largest)) {
      layer.add_label(largest, text, lettering, text_colour_on(colour(in->look)));
      return;
    }
    across.width = text_width_of(text) * lettering.size + 6;
    across.height = 1.3 * lettering.size;
    if (across.width > 0.6 * box.width || across.height > box.height) return;
    across.x += (box.width - across.width) / 2;
    across.y += (box.height - across.height) / 2;
    layer.add(across, {255, 255, 255});
    layer.add_label(across, text, lettering, "black");
  }

  void add_all_blocks(SvgLayer& passes, SvgLayer& copies, SvgLayer& labels) const {
    const auto blocks = [&](const std::vector<PictureRow>& rows) {
      return blocks_of(rows, kMostIdle / scale_, kLeastBlock / scale_);
    };
    const auto steps = blocks(rows_.steps);
    for (size_t rank = 0; rank < steps.size(); ++rank) {
      add_blocks(passes, labels, steps[rank], {0, top_of(rank), 0, kRow});
    }
    for (const ActionKind kind : {ActionKind::offload, ActionKind::reload}) {
      if (lanes_ == 0 || (lanes_ == 1 && kind == ActionKind::reload)) break;
      std::vector<PictureRow> lane = rows_.copies;
      for (PictureRow& row : lane) {
        if (lanes_ == 1) break;
        std::erase_if(row, [&](const PictureStep& s) { return s.passes.front().kind != kind; });
      }
      const auto copied = blocks(lane);
      for (size_t rank = 0; rank < copied.size(); ++rank) {
        add_blocks(copies, labels, copied[rank], lane_of(rank, kind));
      }
    }
  }

  // Lines through the picture at round times, and the times below.
  std::string axis(std::string_view text) const {
    std::string lines, times;
    const double tick = rows_.end > 0 ? tick_of(rows_.end) : 1;
    for (int64_t i = 0; tick * static_cast<double>(i) <= rows_.end; ++i) {
      const double time = tick * static_cast<double>(i);
      lines += fmt::format("M{} {}V{}", svg_number(x_of(time)), kTop - 3, svg_number(bottom_ + 3));
      times += fmt::format("<text x=\"{}\" y=\"{}\">{:g}</text>\n", svg_number(x_of(time)),
                           svg_number(bottom_ + 14), time);
    }
    return fmt::format(
        "<g class=\"axis\" text-anchor=\"middle\" font-size=\"10\">\n"
        "<path d=\"{}\" stroke=\"#cccccc\" stroke-width=\"0.6\"/>\n{}"
        "<text x=\"{}\" y=\"{}\">{}</text>\n</g>\n",
        lines, times, (kLeft + kWidth - kRight) / 2, svg_number(bottom_ + 28), svg_text(text));
  }

  std::string rank_names() const {
    std::string names = "<g class=\"ranks\" text-anchor=\"end\">\n";
    for (size_t rank = 0; rank < rows_.steps.size(); ++rank) {
      names += fmt::format("<text x=\"{}\" y=\"{}\">rank {}</text>\n", kLeft - 8,
                           svg_number(top_of(rank) + kRow / 2 + 4), rank);
    }
    return names + "</g>\n";
  }

  struct Item {
    std::vector<PicturePass> looks;
    std::string text;
  };

  std::vector<Item> legend_items(const std::vector<std::string_view>& notes) const {
    std::vector<Item> items;
    for (const PicturePass& look : rows_.looks) {
      if (items.empty() || items.back().looks.front().kind != look.kind) {
        items.emplace_back().text = fmt::format("{} {}", word_of(look.kind), meaning_of(look.kind));
      }
      items.back().looks.push_back(look);
    }
    if (rows_.shades > 1) {
      items.emplace_back().text = fmt::format("light to dark: {}", rows_.shade_meaning);
    }
    for (const std::string_view note : notes) items.emplace_back().text = note;
    return items;
  }

  // Draws the legend from `y` on, and moves `y` below it.
  std::string legend(double& y, const std::vector<std::string_view>& notes) const {
    SvgLayer swatches;
    std::string texts;
    double x = kLeft;
    for (const Item& item : legend_items(notes)) {
      const auto looks = static_cast<double>(item.looks.size());
      const double swatch = looks > 4 ? 4 * kSwatch / looks : kSwatch;
      const double width = swatch * looks + (looks > 0 ? 5 : 0) + text_width_of(item.text) * kText;
      if (x > kLeft && x + width > kWidth - kRight) {
        x = kLeft;
        y += kLine;
      }
      for (size_t i = 0; i < item.looks.size(); ++i) {
        swatches.add({x + swatch * static_cast<double>(i), y, swatch, kSwatch},
                     colour(item.looks[i]));
      }
      texts += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n",
                           svg_number(x + swatch * looks + (looks > 0 ? 5 : 0)),
                           svg_number(y + 10.5), svg_text(item.text));
      x += width + 16;
    }
    y += kLine + 4;
    return swatches.group("legend") + texts;
  }

  int32_t slices_;
  PictureRows rows_;
  double scale_ = 0;  // units by time
  int lanes_ = 0;     // for the copies of a rank
  double bottom_ = 0;
  std::vector<Placed> passes_, copies_;
};

}  // namespace

std::string svg_picture(const Schedule& schedule, const LinkedActions& linked,
                        const ScheduleTiming& timing, std::string_view title,
                        std::string_view time_axis) {
  return SvgPicture(schedule, linked, timing).document(title, time_axis);
}

}  // namespace longspan
