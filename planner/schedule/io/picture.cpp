#include "planner/schedule/io/picture.h"

#include <fmt/format.h>
#include <cassert>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <vector>

namespace longspan {
namespace {

using Kind = ActionKind;

constexpr char fill_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return '=';
    case Kind::backward:
      return '#';
    case Kind::backward_input:
      return '+';
    case Kind::backward_weight:
      return '-';
    default:
      return ':';
  }
}

constexpr std::string_view colour_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return "#7aa6da";
    case Kind::backward:
      return "#e0975c";
    case Kind::backward_input:
      return "#74b98f";
    case Kind::backward_weight:
      return "#e3c567";
    case Kind::recompute:
      return "#b3c7e2";
    default:
      return "#b59bd0";
  }
}

// By stage: its index among its rank's stages, in the order of their first forwards.
std::vector<int32_t> chunks_of(const Schedule& s) {
  std::vector<int32_t> chunks(s.all_stages(), 0);
  for (const std::vector<Action>& list : s.ranks) {
    std::vector<int32_t> seen;
    for (const Action& a : list) {
      if (a.kind != Kind::forward || a.microbatch > 0 || a.slice > 0) continue;
      chunks[a.stage] = static_cast<int32_t>(seen.size());
      seen.push_back(a.stage);
    }
  }
  return chunks;
}

std::string label_of(const Schedule& s, const Action& a) {
  return s.slices > 1 ? fmt::format("{}.{}", a.microbatch, a.slice)
                      : fmt::format("{}", a.microbatch);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

// Calls visit(action, start, end, part, parts) for the computations of `rank`; actions that run as
// one divide their time into parts.
template <class Visit>
void for_each_computation(const LinkedActions& linked, const ScheduleTiming& timing, size_t rank,
                          Visit visit) {
  for (int32_t i = linked.first_of_rank[rank]; i < linked.first_of_rank[rank + 1];) {
    int32_t end = i;
    while (linked.actions[end].with_next) ++end;
    ++end;
    for (int32_t k = i; k < end; ++k) {
      if (!is_compute(linked.actions[k].kind)) continue;
      visit(linked.actions[k], timing.starts[k], timing.ends[k], k - i, end - i);
    }
    i = end;
  }
}

}  // namespace

std::string text_picture(const Schedule& schedule, const LinkedActions& linked,
                         const ScheduleTiming& timing, int32_t width) {
  assert(width >= 12);
  const std::vector<int32_t> chunks = chunks_of(schedule);
  double shortest = timing.makespan;
  size_t longest_label = 1;
  for (size_t i = 0; i < linked.actions.size(); ++i) {
    if (!is_compute(linked.actions[i].kind)) continue;
    const double duration = timing.ends[i] - timing.starts[i];
    if (duration > 0) shortest = std::min(shortest, duration);
    longest_label = std::max(longest_label, label_of(schedule, linked.actions[i]).size());
  }
  const std::string widest = fmt::format("{}", schedule.ranks.size() - 1);
  const auto columns = static_cast<double>(width - static_cast<int32_t>(widest.size()) - 2);
  if (timing.makespan <= 0) return {};
  // If the width allows, the shortest action has room for its letter and label.
  const double scale =
      std::min(columns / timing.makespan, (static_cast<double>(longest_label) + 1) / shortest);
  const auto column_of = [&](double time) {
    return static_cast<size_t>(std::lround(time * scale));
  };
  std::string picture;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string line(column_of(timing.makespan), '.');
    for_each_computation(
        linked, timing, rank, [&](const Action& a, double start, double end, int part, int parts) {
          const double length = (end - start) / parts;
          const size_t from = column_of(start + length * part);
          const size_t room = column_of(start + length * (part + 1)) - from;
          if (room == 0) return;
          const int letter = word_of(a.kind).front();
          const bool first = a.stage >= schedule.all_stages() || chunks[a.stage] == 0;
          std::string field(1, static_cast<char>(first ? letter : std::tolower(letter)));
          const std::string label = label_of(schedule, a);
          if (label.size() + 1 <= room) field += label;
          field.resize(room, fill_of(a.kind));
          line.replace(from, room, field);
        });
    picture += fmt::format("{:>{}}  {}\n", rank, widest.size(), line);
  }
  return picture;
}

std::string svg_picture(const Schedule& schedule, const LinkedActions& linked,
                        const ScheduleTiming& timing, std::string_view title) {
  constexpr double kWidth = 1200, kRow = 26, kLeft = 60, kTop = 40, kLegend = 40;
  const std::vector<int32_t> chunks = chunks_of(schedule);
  const auto ranks = static_cast<double>(schedule.ranks.size());
  const double height = kTop + ranks * kRow + kLegend;
  const double scale = timing.makespan > 0 ? (kWidth - kLeft - 10) / timing.makespan : 0;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{:.0f}\" y=\"22\" font-size=\"14\">{}</text>\n",
      kWidth, height, kLeft, escaped(title));
  std::vector<Kind> kinds;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const double top = kTop + static_cast<double>(rank) * kRow;
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">rank {}</text>\n",
                       kLeft - 8, top + 16, rank);
    for_each_computation(
        linked, timing, rank, [&](const Action& a, double start, double end, int part, int parts) {
          if (std::find(kinds.begin(), kinds.end(), a.kind) == kinds.end()) kinds.push_back(a.kind);
          const double left = kLeft + start * scale, wide = (end - start) * scale;
          const double tall = (kRow - 4) / parts, y = top + tall * part;
          const int32_t chunk = a.stage < schedule.all_stages() ? chunks[a.stage] : 0;
          svg += fmt::format(
              "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
              "stroke=\"white\" stroke-width=\"0.5\"/>",
              left, y, wide, tall, colour_of(a.kind));
          if (chunk > 0) {
            svg += fmt::format(
                "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"black\" "
                "fill-opacity=\"{:.2f}\"/>",
                left, y, wide, tall, std::min(0.45, 0.18 * chunk));
          }
          const std::string label = label_of(schedule, a);
          if (wide > 6.5 * static_cast<double>(label.size()) && tall > 9) {
            svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"middle\">{}</text>",
                               left + wide / 2, y + tall / 2 + 4, label);
          }
          svg += '\n';
        });
  }
  std::sort(kinds.begin(), kinds.end());
  double x = kLeft;
  for (const Kind kind : kinds) {
    svg += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"14\" fill=\"{}\"/>"
        "<text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n",
        x, height - 26, colour_of(kind), x + 20, height - 15, word_of(kind));
    x += 60;
  }
  return svg + "</svg>\n";
}

}  // namespace longspan
