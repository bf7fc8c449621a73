// Elements of SVG drawings: rectangles and texts in layers, grouped by colour.
//
// Plain values; not shared between threads.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

namespace longspan {

struct Colour {
  int red = 0, green = 0, blue = 0;
  auto operator<=>(const Colour&) const = default;
};

/// "black" or "white", whichever has more contrast (WCAG 2.1, relative luminance). The contrast is
/// always at least 4.58 to 1.
std::string_view text_colour_on(const Colour& colour);

struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};

/// How labels are written.
struct Lettering {
  double size = 0;
  bool is_upright = false;  ///< read from bottom to top

  /// Whether `text` fits into the box with a margin.
  bool fits(std::string_view text, const Box& box) const;
};

/// An estimate of a text's width in Helvetica or Arial, for text of size 1.
double text_width_of(std::string_view text);

/// A number with at most two decimals.
std::string svg_number(double value);
/// `text` with the characters that XML reserves replaced.
std::string svg_text(std::string_view text);

class SvgLayer {
 public:
  void add(const Box& box, const Colour& colour);
  /// Centred in the box.
  void add_label(const Box& box, std::string_view text, const Lettering& lettering,
                 std::string_view colour);

  /// A group of this class: all boxes, then all labels.
  std::string group(std::string_view name) const;

 private:
  std::map<Colour, std::string> boxes_;
  std::map<std::tuple<double, bool, std::string>, std::string> labels_;  // by size, upright, colour
};

}  // namespace longspan
