#include "planner/schedule/io/svg_layer.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace longspan {
namespace {

constexpr double kMargin = 0.8, kAcross = 1;  // before and after a label, above and below
constexpr double kDigitHeight = 0.72;         // of text of size 1

}  // namespace

std::string_view text_colour_on(const Colour& colour) {
  const auto linear = [](int value) {
    const double v = value / 255.0;
    return v <= 0.04045 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4);
  };
  const double luminance =
      0.2126 * linear(colour.red) + 0.7152 * linear(colour.green) + 0.0722 * linear(colour.blue);
  return (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) ? "black" : "white";
}

bool Lettering::fits(std::string_view text, const Box& box) const {
  const double length = is_upright ? box.height : box.width;
  const double thickness = is_upright ? box.width : box.height;
  return text_width_of(text) * size + 2 * kMargin <= length &&
         kDigitHeight * size + 2 * kAcross <= thickness;
}

double text_width_of(std::string_view text) {
  double width = 0;
  for (const char c : text) {
    if (std::string_view(" .,:;()il").find(c) != std::string_view::npos) {
      width += 0.3;
    } else {
      width += (c >= 'A' && c <= 'Z') || c == '+' ? 0.72 : 0.58;
    }
  }
  return width;
}

std::string svg_number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string svg_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

void SvgLayer::add(const Box& box, const Colour& colour) {
  boxes_[colour] +=
      fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", svg_number(box.x),
                  svg_number(box.y), svg_number(box.width), svg_number(box.height));
}

void SvgLayer::add_label(const Box& box, std::string_view text, const Lettering& lettering,
                         std::string_view colour) {
  double x = box.x + box.width / 2, y = box.y + box.height / 2;
  if (lettering.is_upright) x = -std::exchange(y, x);  // in axes that are turned to the left
  y += kDigitHeight / 2 * lettering.size;
  labels_[{lettering.size, lettering.is_upright, std::string(colour)}] += fmt::format(
      "<text x=\"{}\" y=\"{}\">{}</text>\n", svg_number(x), svg_number(y), svg_text(text));
}

std::string SvgLayer::group(std::string_view name) const {
  std::string out = fmt::format("<g class=\"{}\">\n", name);
  for (const auto& [colour, boxes] : boxes_) {
    out += fmt::format("<g fill=\"#{:02x}{:02x}{:02x}\">\n{}</g>\n", colour.red, colour.green,
                       colour.blue, boxes);
  }
  for (const auto& [look, labels] : labels_) {
    const auto& [size, is_upright, colour] = look;
    out +=
        fmt::format("<g fill=\"{}\" font-size=\"{}\" text-anchor=\"middle\"{}>\n{}</g>\n", colour,
                    svg_number(size), is_upright ? " transform=\"rotate(-90)\"" : "", labels);
  }
  return out + "</g>\n";
}

}  // namespace longspan
