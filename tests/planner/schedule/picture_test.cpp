// Pictures of schedules as text and as SVG: what is drawn, what is labelled, what the legend says.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "planner/schedule/compare.h"
#include "planner/schedule/io/picture.h"
#include "planner/schedule/io/picture_rows.h"
#include "planner/schedule/io/svg_layer.h"

namespace longspan {
namespace {

using Catch::Matchers::Contains;

constexpr double kRowHeight = 22;  // of a rank's passes in SVG
constexpr size_t kMostBytes = 200'000;

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::vector<std::string> classes;           // of the groups around it, outermost first
  std::map<std::string, std::string> around;  // attributes of those groups, the innermost first
  std::string fill;                           // its own, or that of the innermost group with one
  std::string text;

  double of(const std::string& attribute) const { return std::stod(attributes.at(attribute)); }
  bool is_in(const std::string& group) const {
    return std::find(classes.begin(), classes.end(), group) != classes.end();
  }
};

// Reads the subset of XML that has elements, attributes in double quotes, text and the entities
// &lt; &gt; &amp;. Fails the test at anything else, and at tags that do not match.
std::vector<Element> parse_xml(const std::string& xml) {
  std::vector<Element> done, open;
  size_t at = 0;
  const auto text_until = [&](char end) {
    std::string text;
    while (at < xml.size() && xml[at] != end) {
      if (xml[at] == '&') {
        const size_t semicolon = xml.find(';', at);
        REQUIRE(semicolon != xml.npos);
        const std::string entity = xml.substr(at + 1, semicolon - at - 1);
        REQUIRE((entity == "lt" || entity == "gt" || entity == "amp"));
        text += entity == "lt" ? '<' : entity == "gt" ? '>' : '&';
        at = semicolon + 1;
      } else {
        REQUIRE((xml[at] != '<' && xml[at] != '>'));
        text += xml[at++];
      }
    }
    return text;
  };
  while (at < xml.size()) {
    const std::string text = text_until('<');
    if (!open.empty()) open.back().text += text;
    if (at == xml.size()) break;
    if (xml[++at] == '/') {
      const size_t end = xml.find('>', at);
      REQUIRE(!open.empty());
      REQUIRE(xml.substr(at + 1, end - at - 1) == open.back().name);
      done.push_back(open.back());
      open.pop_back();
      at = end + 1;
      continue;
    }
    Element element;
    if (!open.empty()) {
      element.classes = open.back().classes;
      element.fill = open.back().fill;
      element.around = open.back().attributes;
      element.around.insert(open.back().around.begin(), open.back().around.end());
      const auto own = open.back().attributes.find("class");
      if (own != open.back().attributes.end()) element.classes.push_back(own->second);
    }
    while (std::isalnum(static_cast<unsigned char>(xml[at])) != 0) element.name += xml[at++];
    REQUIRE_FALSE(element.name.empty());
    while (xml[at] == ' ') {
      const size_t equals = xml.find("=\"", at);
      REQUIRE(equals != xml.npos);
      const std::string name = xml.substr(at + 1, equals - at - 1);
      REQUIRE(name.find_first_of("<>\"/ ") == name.npos);
      at = equals + 2;
      REQUIRE(element.attributes.emplace(name, text_until('"')).second);
      ++at;
    }
    if (const auto own = element.attributes.find("fill"); own != element.attributes.end()) {
      element.fill = own->second;
    }
    const bool is_empty = xml[at] == '/';
    at += is_empty ? 1 : 0;
    REQUIRE(xml[at++] == '>');
    (is_empty ? done : open).push_back(element);
  }
  REQUIRE(open.empty());
  return done;
}

std::vector<Element> rectangles(const std::vector<Element>& all, const std::string& group) {
  std::vector<Element> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const Element& element) {
    return element.name == "rect" && element.is_in(group);
  });
  return found;
}

std::vector<std::string> labels(const std::vector<Element>& all) {
  std::vector<std::string> found;
  for (const Element& element : all) {
    if (element.name == "text" && element.is_in("labels")) found.push_back(element.text);
  }
  return found;
}

std::string drawn(const TimedSchedule& t) {
  return svg_picture(t.schedule, t.linked, t.timing, "title", "time");
}

std::string written(const TimedSchedule& t, int32_t width) {
  return text_picture(t.schedule, t.linked, t.timing, width);
}

// The lines of the ranks, without their shares of idle time, and the legend in one line.
struct Written {
  std::vector<std::string> ranks;
  std::string legend;
};
Written divided(const TimedSchedule& t, const std::string& picture) {
  Written parts;
  std::istringstream lines(picture);
  for (std::string line; std::getline(lines, line);) {
    if (parts.ranks.size() < t.schedule.ranks.size()) {
      parts.ranks.push_back(line.substr(0, line.find(" %")));
      if (line.ends_with(" %")) parts.ranks.back().resize(line.size() - 8);
    } else {
      parts.legend += line + ' ';
    }
  }
  return parts;
}

// The kinds that take time.
std::set<ActionKind> kinds_of(const TimedSchedule& t) {
  std::set<ActionKind> kinds;
  for (size_t i = 0; i < t.linked.actions.size(); ++i) {
    if (t.timing.ends[i] > t.timing.starts[i]) kinds.insert(t.linked.actions[i].kind);
  }
  return kinds;
}

int64_t count_of(const TimedSchedule& t, bool vocabulary, bool copies) {
  int64_t passes = 0;
  for (size_t i = 0; i < t.linked.actions.size(); ++i) {
    const ActionKind kind = t.linked.actions[i].kind;
    passes += t.timing.ends[i] > t.timing.starts[i] && of_vocabulary(kind) == vocabulary &&
              is_compute(kind) != copies;
  }
  return passes;
}

PipelineTask task_of(int32_t ranks, int32_t microbatches) {
  PipelineTask task{.ranks = ranks, .microbatches = microbatches};
  task.times.vocabulary_forward = 0.3;
  task.times.vocabulary_backward = 0.4;
  task.communication = 0.05;
  return task;
}

// Calls visit(timed) for every family that has a schedule of this size.
template <class Visit>
void for_each_family(const PipelineTask& task, const ScheduleChoice& choice, Visit visit) {
  int families = 0;
  for (const ScheduleFamily& family : schedule_families()) {
    ScheduleChoice own;
    if (family.most_virtual_stages == 0) own.virtual_stages = choice.virtual_stages;
    if (family.sliced) own.slices = choice.slices;
    INFO(family.name);
    TimedSchedule timed;
    try {
      timed = time_schedule(family, task, own);
    } catch (const Error&) {
      continue;  // the family has no schedule of this size
    }
    ++families;
    visit(timed);
  }
  CHECK(families > 25);
}

// Whether two rectangles share more than the rounding of their coordinates.
bool overlap(const Element& a, const Element& b) {
  const auto shared = [&](const char* from, const char* length) {
    return std::min(a.of(from) + a.of(length), b.of(from) + b.of(length)) -
           std::max(a.of(from), b.of(from));
  };
  return shared("x", "width") > 0.021 && shared("y", "height") > 0.021;
}

bool any_overlap(std::vector<Element> boxes) {
  std::sort(boxes.begin(), boxes.end(),
            [](const Element& a, const Element& b) { return a.of("x") < b.of("x"); });
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t k = i + 1; k < boxes.size(); ++k) {
      if (boxes[k].of("x") > boxes[i].of("x") + boxes[i].of("width")) break;
      if (overlap(boxes[i], boxes[k])) return true;
    }
  }
  return false;
}

double luminance(const Colour& colour) {
  const auto linear = [](int value) {
    const double v = value / 255.0;
    return v <= 0.04045 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(colour.red) + 0.7152 * linear(colour.green) + 0.0722 * linear(colour.blue);
}

// CIE lightness, 0 to 100, of "#rrggbb".
double lightness(const std::string& fill) {
  const auto part = [&](size_t at) { return std::stoi(fill.substr(at, 2), nullptr, 16); };
  return 116 * std::cbrt(luminance({part(1), part(3), part(5)})) - 16;
}

// A row of steps, one after another, each as long as its place among the letters of `kinds` says.
PictureRow row_of(const std::string& letters) {
  PictureRow row;
  double time = 0;
  for (const char letter : letters) {
    if (letter == '.') {
      time += 1;
      continue;
    }
    const auto kind = kind_of(std::string(1, static_cast<char>(std::toupper(letter))));
    const int32_t shade = std::islower(static_cast<unsigned char>(letter)) != 0 ? 1 : 0;
    row.push_back({time, time + 1, {{*kind, shade, 0, 0}}});
    time += 1;
  }
  return row;
}

std::vector<std::string> block_labels(const std::string& letters, double gap, double least,
                                      const std::string& other_rank = "") {
  const auto blocks = blocks_of({row_of(letters), row_of(other_rank)}, gap, least);
  std::vector<std::string> found;
  for (const PictureBlock& block : blocks.front()) found.push_back(label_of(block));
  return found;
}

// The box around a label, with digits and points as wide as those of Helvetica.
Element label_box(const Element& label) {
  const double size = std::stod(label.around.at("font-size"));
  double length = 0;
  for (const char c : label.text) length += size * (c == '.' ? 0.278 : 0.556);
  double x = label.of("x"), y = label.of("y") - 0.36 * size;
  double width = length, height = 0.72 * size;
  if (label.around.contains("transform")) {  // turned to the left
    std::swap(width, height);
    x = std::exchange(y, -x);
  }
  Element box;
  box.attributes = {{"x", std::to_string(x - width / 2)},
                    {"y", std::to_string(y - height / 2)},
                    {"width", std::to_string(width)},
                    {"height", std::to_string(height)}};
  return box;
}

bool contains(const Element& outer, const Element& inner) {
  const auto within = [&](const char* from, const char* length) {
    return inner.of(from) >= outer.of(from) &&
           inner.of(from) + inner.of(length) <= outer.of(from) + outer.of(length);
  };
  return within("x", "width") && within("y", "height");
}

using Labels = std::vector<std::string>;

}  // namespace

TEST_CASE("text: every rank, aligned, with its idle time and a legend") {
  const TimedSchedule t =
      time_schedule(schedule_family("1f1b"), {.ranks = 2, .microbatches = 2}, {});
  // Both ranks compute 6 of a cost of 9.
  CHECK(written(t, 100) ==
        "0  F0F1....B0##..B1##  33.3 %\n"
        "1  ..F0B0##F1B1##....  33.3 %\n"
        "   F forward   B backward   # the pass continues   numbers: microbatches   . idle\n"
        "   %: idle part of the cost\n");
  const TimedSchedule v =
      time_schedule(schedule_family("zb-v"), {.ranks = 2, .microbatches = 4}, {});
  const Written parts = divided(v, written(v, 100));
  for (const char* word : {"F0", "f0", "I0", "i0", "W0", "w0"}) {
    for (const std::string& line : parts.ranks) CHECK_THAT(line, Contains(word));
  }
  CHECK_THAT(parts.legend, Contains("small letters: later virtual stages of a rank"));
}

TEST_CASE("text: numbers of all passes or of none") {
  const TimedSchedule t =
      time_schedule(schedule_family("1f1b"), {.ranks = 2, .microbatches = 12}, {});
  // 39 units of time: at 3 columns F and B have their two digits, below only letters, below 2
  // columns blocks.
  const std::string wide = written(t, 140);
  CHECK_THAT(wide, Contains("F10") && Contains("B10###") && Contains("numbers: microbatches"));
  const Written letters = divided(t, written(t, 100));
  CHECK_THAT(letters.ranks[0], Contains("F=") && Contains("B####"));
  for (const std::string& line : letters.ranks) {
    CHECK(line.find_first_of("0123456789", 3) == line.npos);
  }
  CHECK_THAT(letters.legend, !Contains("numbers"));
  const Written blocks = divided(t, written(t, 40));
  CHECK_THAT(blocks.ranks[1], Contains("FBFBFBFBFB"));
  for (const std::string& line : blocks.ranks) {
    CHECK(line.find_first_of("0123456789#=", 3) == line.npos);
  }
  CHECK_THAT(blocks.legend, Contains("take turns"));
}

TEST_CASE("text: no line is wider than asked, and the legend has what occurs") {
  for (const auto& [ranks, microbatches] : {std::pair(4, 8), std::pair(8, 32)}) {
    for_each_family(task_of(ranks, microbatches), {}, [&](const TimedSchedule& t) {
      const std::set<ActionKind> kinds = kinds_of(t);
      for (const int32_t width : {20, 59, 60, 80, 118, 400}) {
        CAPTURE(width);
        const std::string picture = written(t, width);
        std::istringstream lines(picture);
        size_t widest = 0;
        for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
        CHECK(widest <= static_cast<size_t>(width));
        const Written parts = divided(t, picture);
        for (int i = 0; i < kActionKindCount; ++i) {
          const auto kind = static_cast<ActionKind>(i);
          if (!is_compute(kind) || width < 80) continue;
          const bool told = parts.legend.find(fmt::format(" {} {}", word_of(kind),
                                                          meaning_of(kind))) != std::string::npos;
          CHECK(told == kinds.contains(kind));
        }
      }
    });
  }
}

TEST_CASE("SVG: a box and a label for every pass, an axis and a legend") {
  const TimedSchedule t =
      time_schedule(schedule_family("zb-h1"), {.ranks = 3, .microbatches = 4}, {});
  const std::string svg =
      svg_picture(t.schedule, t.linked, t.timing, "a < b & c", "time (F of \"x\" > 1)");
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  const std::vector<Element> all = parse_xml(svg);
  CHECK(rectangles(all, "passes").size() == 3 * 3 * 4);
  CHECK(rectangles(all, "copies").empty());
  CHECK(rectangles(all, "legend").size() == 3);
  const Labels found = labels(all);
  CHECK(std::count(found.begin(), found.end(), "W3") == 3);
  Labels axis, ranks;
  bool has_title = false;
  for (const Element& e : all) {
    if (e.name != "text") continue;
    if (e.is_in("axis")) axis.push_back(e.text);
    if (e.is_in("ranks")) ranks.push_back(e.text);
    has_title |= e.text == "a < b & c";
  }
  CHECK(has_title);
  // The makespan is 4 (F + I + W) and p - 1 of F.
  CHECK(axis == Labels{"0", "2", "4", "6", "8", "10", "12", "14", "time (F of \"x\" > 1)"});
  CHECK(ranks == Labels{"rank 0", "rank 1", "rank 2"});
}

TEST_CASE("SVG: well-formed, without overlap, with all that takes time and its legend") {
  struct Size {
    int32_t ranks, microbatches, virtual_stages;
  };
  for (const Size& size : {Size{4, 8, 2}, Size{8, 64, 4}}) {
    for_each_family(
        task_of(size.ranks, size.microbatches), {.virtual_stages = size.virtual_stages},
        [&](const TimedSchedule& t) {
          const std::string svg = drawn(t);
          CHECK(svg.size() < kMostBytes);
          const std::vector<Element> all = parse_xml(svg);
          const std::vector<Element> passes = rectangles(all, "passes");
          CHECK_FALSE(any_overlap(passes));
          CHECK_FALSE(any_overlap(rectangles(all, "copies")));
          // Areas are times, whether passes are drawn one by one or in blocks, less the lines
          // between them: a tenth at most.
          double busy = 0, end = 0, area = 0;
          for (const RankTiming& rank : t.timing.ranks) busy += rank.busy;
          for (const double time : t.timing.ends) end = std::max(end, time);
          for (const Element& box : passes) area += box.of("width") * box.of("height");
          const double expected = busy * (1000 - 56 - 14) / end * kRowHeight;
          CHECK(area <= 1.01 * expected);
          CHECK(area >= 0.89 * expected);
          const std::set<ActionKind> kinds = kinds_of(t);
          for (int i = 0; i < kActionKindCount; ++i) {
            const auto kind = static_cast<ActionKind>(i);
            const std::string words = fmt::format("{} {}", word_of(kind), meaning_of(kind));
            const bool told = std::any_of(all.begin(), all.end(),
                                          [&](const Element& e) { return e.text == words; });
            CHECK(told == kinds.contains(kind));
          }
          // Each colour that is drawn is in the legend, and no others.
          std::set<std::string> fills, explained;
          for (const Element& box : passes) fills.insert(box.fill);
          for (const Element& box : rectangles(all, "copies")) fills.insert(box.fill);
          for (const Element& box : rectangles(all, "legend")) explained.insert(box.fill);
          CHECK(fills == explained);
        });
  }
}

TEST_CASE("SVG: labels of all passes or of none") {
  for (const int32_t microbatches : {8, 12, 16, 24}) {
    for_each_family(task_of(4, microbatches), {}, [&](const TimedSchedule& t) {
      const std::vector<Element> all = parse_xml(drawn(t));
      const bool one_by_one = static_cast<int64_t>(rectangles(all, "passes").size()) ==
                              count_of(t, false, false) + count_of(t, true, false);
      if (!one_by_one) return;
      // Labels of S and T, and of copies, are a matter of their own.
      int64_t allowed[8];
      for (int i = 0; i < 8; ++i) {
        allowed[i] = (i & 1 ? count_of(t, false, false) : 0) +
                     (i & 2 ? count_of(t, true, false) : 0) +
                     (i & 4 ? count_of(t, false, true) : 0);
      }
      std::vector<Element> boxes = rectangles(all, "passes");
      const std::vector<Element> copies = rectangles(all, "copies");
      boxes.insert(boxes.end(), copies.begin(), copies.end());
      for (const Element& e : all) {
        if (e.name != "text" || !e.is_in("labels")) continue;
        const Element box = label_box(e);
        const bool fits = std::any_of(boxes.begin(), boxes.end(),
                                      [&](const Element& around) { return contains(around, box); });
        if (!fits) FAIL_CHECK(e.text << " is larger than its pass");
      }
      const auto found = static_cast<int64_t>(labels(all).size());
      CHECK(std::find(allowed, allowed + 8, found) != allowed + 8);
    });
  }
  // Narrow slices keep their labels with the wide ones.
  const TimedSchedule t = time_schedule(schedule_family("seq1f1b"), task_of(4, 8), {.slices = 4});
  const Labels found = labels(parse_xml(drawn(t)));
  CHECK(found.size() == 4 * 8 * 4 * 2);
  CHECK(std::count(found.begin(), found.end(), "7.3") == 4 * 2);
}

TEST_CASE("pictures leave out what takes no time") {
  const TimedSchedule t =
      time_schedule(schedule_family("1f1b-vocab-1"), {.ranks = 4, .microbatches = 8}, {});
  const std::vector<Element> all = parse_xml(drawn(t));  // S and T take 0
  CHECK(rectangles(all, "passes").size() == 4 * 8 * 2);
  CHECK(rectangles(all, "legend").size() == 2);
  CHECK_THAT(written(t, 118), !Contains("output layer"));
}

TEST_CASE("SVG: copies have lanes below their rank, at their own times") {
  PipelineTask task = task_of(4, 8);
  task.times.offload = task.times.reload = 0.5;
  for (const char* name : {"po-h", "sppo"}) {
    INFO(name);
    const TimedSchedule t = time_schedule(schedule_family(name), task, {});
    const std::vector<Element> all = parse_xml(drawn(t));
    const std::vector<Element> copies = rectangles(all, "copies");
    CHECK(static_cast<int64_t>(copies.size()) == count_of(t, false, true));
    std::vector<Element> both = rectangles(all, "passes");
    both.insert(both.end(), copies.begin(), copies.end());
    CHECK_FALSE(any_overlap(both));
    double end = 0;
    for (const double time : t.timing.ends) end = std::max(end, time);
    std::multiset<int64_t> expected, found;  // starts, in hundredths of the drawing's unit
    for (size_t i = 0; i < t.linked.actions.size(); ++i) {
      if (is_compute(t.linked.actions[i].kind) || t.timing.ends[i] <= t.timing.starts[i]) continue;
      const double scale = 930 / end;
      const double width = (t.timing.ends[i] - t.timing.starts[i]) * scale;
      const double x = 56 + t.timing.starts[i] * scale + std::min(0.8, width / 10) / 2;
      expected.insert(std::llround(100 * x));
    }
    for (const Element& box : copies) found.insert(std::llround(100 * box.of("x")));
    CHECK(std::equal(expected.begin(), expected.end(), found.begin(), found.end(),
                     [](int64_t a, int64_t b) { return std::abs(a - b) <= 1; }));
  }
}

TEST_CASE("SVG: copies that run at the same time have a lane each") {
  PipelineTask task = task_of(4, 8);
  task.times.offload = task.times.reload = 2;
  TimedSchedule t = time_schedule(schedule_family("sppo"), task, {});
  const auto lanes = [&] {
    std::set<double> tops;
    const std::vector<Element> copies = rectangles(parse_xml(drawn(t)), "copies");
    for (const Element& box : copies) tops.insert(box.of("y"));
    CHECK_FALSE(any_overlap(copies));
    return tops.size();
  };
  CHECK(lanes() == 4);  // one on each rank
  t.request.costs.both_ways = true;
  t.timing = simulate(t.schedule, t.linked, t.request.costs);
  CHECK(lanes() == 8);
}

TEST_CASE("SVG: kinds differ in lightness, and every label stands out") {
  for (const char* name : {"1f1b-vocab-1", "zb-h1", "po-h", "gpipe"}) {
    INFO(name);
    const TimedSchedule t = time_schedule(schedule_family(name), task_of(4, 8), {});
    std::set<std::string> seen;
    std::vector<double> grey;  // of each kind's first stage: the first box after a wider gap
    double end = -1;
    std::vector<Element> boxes = rectangles(parse_xml(drawn(t)), "legend");
    std::sort(boxes.begin(), boxes.end(), [](const Element& a, const Element& b) {
      return std::pair(a.of("y"), a.of("x")) < std::pair(b.of("y"), b.of("x"));
    });
    for (const Element& box : boxes) {
      if (std::abs(box.of("x") - end) > 0.02) grey.push_back(lightness(box.fill));
      end = box.of("x") + box.of("width");
      CHECK(seen.insert(box.fill).second);
    }
    CHECK(grey.size() == kinds_of(t).size());
    std::sort(grey.begin(), grey.end());
    for (size_t i = 1; i < grey.size(); ++i) CHECK(grey[i] - grey[i - 1] >= 7);
  }
  for (int red = 0; red < 256; red += 15) {
    for (int green = 0; green < 256; green += 15) {
      for (int blue = 0; blue < 256; blue += 15) {
        const double below = luminance({red, green, blue}) + 0.05;
        const double text = text_colour_on({red, green, blue}) == "black" ? 0.05 : 1.05;
        CHECK(std::max(below, text) / std::min(below, text) >= 4.5);
      }
    }
  }
}

TEST_CASE("blocks: what repeats, and where it begins") {
  CHECK(block_labels("FFFFBFBFBFBFBBB", 0, 0) == Labels{"3 F", "5 (F B)", "2 B"});
  CHECK(block_labels("FFFBBB", 0, 0) == Labels{"3 F", "3 B"});
  CHECK(block_labels("FIWFIWFIW", 0, 0) == Labels{"3 (F I W)"});
  CHECK(block_labels("FFFBBFFFBBFFFBB", 0, 0) == Labels{"3 (3 F 2 B)"});
  // Stages repeat what they do apart.
  CHECK(block_labels("FFffBBbb", 0, 0) == Labels{"2 F", "2 F", "2 B", "2 B"});
  CHECK(block_labels("FIWfiwFIWfiw", 0, 0) == Labels{"4 (F I W)"});
  // Idle time divides blocks if it is long.
  CHECK(block_labels("FF.FF..FF", 1, 0) == Labels{"4 F", "2 F"});
  CHECK(block_labels("FF.FF..FF", 0, 0) == Labels{"2 F", "2 F", "2 F"});
  // Short blocks of the same kinds are joined, the shortest with all that are short.
  CHECK(block_labels("FFffFFffBBbb", 0, 3) == Labels{"8 F", "4 B"});
  CHECK(block_labels("FFFBBWFFFF", 0, 2) == Labels{"3 F", "2 B + 1 W", "4 F"});
  CHECK(block_labels("FFFFBBWWW", 0, 2) == Labels{"4 F", "2 B", "3 W"});
  // All ranks are shown alike: where most are in short blocks, long ones are joined too.
  CHECK(block_labels("FFFFFFFFFFff", 0, 3) == Labels{"10 F", "2 F"});
  CHECK(block_labels("FFFFFFFFFFff", 0, 3, "FFffFFFffffF") == Labels{"12 F"});
  CHECK(block_labels("", 0, 3).empty());
  const auto blocks = blocks_of({row_of("FBfbFB.FBfb")}, 1, 100).front();
  REQUIRE(blocks.size() == 1);
  REQUIRE(blocks[0].shares.size() == 4);
  for (const PictureShare& share : blocks[0].shares) {
    CHECK(share.time == (share.look.shade == 0 ? 3 : 2));
    CHECK(share.passes == (share.look.shade == 0 ? 3 : 2));
  }
  CHECK(blocks[0].end == 11);
}

}  // namespace longspan
