#include "frameworks/prediction_interval.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/embedded.h"
#include "base/error.h"
#include "base/yaml.h"

namespace longspan {

/// The files of frameworks/ranges; defined by a source that the build writes.
std::span<const EmbeddedFile> range_files();

namespace {

constexpr double kTail = 0.05;  // share of the runs outside, at either end
constexpr double kTailStep = 0.005;
constexpr double kEnoughRuns = 5;  // with which a table counts in full
constexpr double kCovered = 0.85;  // least share of the runs in the ranges of other tables

constexpr std::pair<const char*, CalibratedInterval PredictionIntervals::*> kFigures[] = {
    {"step_time", &PredictionIntervals::step},
    {"memory", &PredictionIntervals::memory},
    {"plan_step_time", &PredictionIntervals::plan_step}};

// The value up to which `share` of the weight lies, including half of the value's own weight;
// interpolated between two values.
double quantile(const std::vector<std::pair<double, double>>& sorted, double share) {
  double before = 0, at = 0, value = sorted.front().first;
  for (const auto& [next, weight] : sorted) {
    const double middle = before + weight / 2;
    if (middle >= share) {
      return at == 0 ? next : value + (next - value) * (share - at) / (middle - at);
    }
    before += weight;
    at = middle;
    value = next;
  }
  return value;
}

// The weight of a table: a single run says less of its software than several do.
double weight_of(const std::vector<double>& of_table) {
  return std::min(1.0, static_cast<double>(of_table.size()) / kEnoughRuns);
}

PredictionInterval read_interval(const YamlMap& yaml) {
  const PredictionInterval interval{yaml.real("low", 0), yaml.real("high", 0)};
  if (interval.low > interval.high) throw yaml.error("high", "expected a number of at least low");
  return interval;
}

std::string text_of(const PredictionInterval& interval) {
  return fmt::format("low: {:.3f}, high: {:.3f}", interval.low, interval.high);
}

PredictionIntervals load_intervals(std::string_view name) {
  for (const EmbeddedFile& file : range_files()) {
    if (file.name == name) {
      return parse_intervals(std::string(file.text), fmt::format("ranges {}", name));
    }
  }
  throw failed("no ranges \"{}\" in the library", name);
}

}  // namespace

const PredictionInterval& CalibratedInterval::of(const std::string& table) const {
  const auto it = without.find(table);
  return it == without.end() ? all : it->second;
}

const CalibratedInterval& PredictionIntervals::step_under(const std::string& family) const {
  const auto it = families.find(family);
  return it == families.end() ? step : it->second;
}

const CalibratedInterval& PredictionIntervals::memory_under(const std::string& family) const {
  const auto it = memory_families.find(family);
  return it == memory_families.end() ? memory : it->second;
}

PredictionInterval interval_of(const Ratios& ratios, double tail) {
  std::vector<std::pair<double, double>> sorted;  // ratio, weight
  double weights = 0;
  for (const auto& [table, of_table] : ratios) weights += weight_of(of_table);
  for (const auto& [table, of_table] : ratios) {
    for (const double ratio : of_table) {
      const double weight = weight_of(of_table) / static_cast<double>(of_table.size());
      sorted.emplace_back(ratio, weight / weights);
    }
  }
  if (sorted.empty()) return {};
  std::sort(sorted.begin(), sorted.end());
  return {quantile(sorted, tail), quantile(sorted, 1 - tail)};
}

namespace {

CalibratedInterval calibrated_with(const Ratios& ratios, double tail) {
  CalibratedInterval calibrated;
  calibrated.all = interval_of(ratios, tail);
  for (const auto& [table, of_table] : ratios) {
    if (of_table.empty()) continue;
    ++calibrated.tables;
    calibrated.cases += static_cast<int64_t>(of_table.size());
    Ratios others = ratios;
    others.erase(table);
    calibrated.without[table] = interval_of(others, tail);
  }
  return calibrated;
}

// The share of all values that lie in the range learned without their own table.
double covered(const CalibratedInterval& calibrated, const Ratios& ratios) {
  int64_t inside = 0;
  for (const auto& [table, of_table] : ratios) {
    inside += std::count_if(of_table.begin(), of_table.end(), [&, &name = table](double ratio) {
      return calibrated.of(name).holds(ratio);
    });
  }
  return static_cast<double>(inside) / static_cast<double>(calibrated.cases);
}

}  // namespace

CalibratedInterval calibrate(const Ratios& ratios) {
  CalibratedInterval calibrated = calibrated_with(ratios, kTail);
  for (double tail = kTail; calibrated.tables > 1 && tail > 0;) {
    if (covered(calibrated, ratios) >= kCovered) break;
    tail = std::max(0.0, tail - kTailStep);
    calibrated = calibrated_with(ratios, tail);
  }
  return calibrated;
}

bool enough(const Ratios& ratios) {
  size_t tables = 0, rows = 0;
  for (const auto& [table, of_table] : ratios) {
    if (of_table.empty()) continue;
    ++tables;
    rows += of_table.size();
  }
  return tables >= 4 && rows >= 40;
}

namespace {

std::string text_of(const std::string& key, const CalibratedInterval& interval) {
  std::string text = fmt::format("{}:\n  {{{}, cases: {}, tables: {},\n   without: {{", key,
                                 text_of(interval.all), interval.cases, interval.tables);
  const char* separator = "";
  for (const auto& [table, without] : interval.without) {
    text += fmt::format("{}\n     {}: {{{}}}", separator, table, text_of(without));
    separator = ",";
  }
  return text + "}}\n";
}

CalibratedInterval read_calibrated(const YamlMap& map) {
  CalibratedInterval interval;
  interval.all = read_interval(map);
  interval.cases = map.whole("cases", 0);
  interval.tables = map.whole("tables", 0);
  const YamlMap without = map.map("without");
  for (const std::string& table : without.keys()) {
    const YamlMap of_table = without.map(table);
    interval.without[table] = read_interval(of_table);
    of_table.finish();
  }
  without.finish();
  map.finish();
  return interval;
}

constexpr std::pair<const char*, std::map<std::string, CalibratedInterval> PredictionIntervals::*>
    kFamilies[] = {{"step_time_under_", &PredictionIntervals::families},
                   {"memory_under_", &PredictionIntervals::memory_families}};

}  // namespace

std::string write_intervals(const PredictionIntervals& ranges) {
  std::string text =
      "# Where 90 % of measurements lie, as multiples of the prediction; and without each "
      "table.\n# Written by `longspan validate tests/published tests/users --write-ranges "
      "FILE`.\n";
  for (const auto& [key, figure] : kFigures) text += text_of(key, ranges.*figure);
  for (const auto& [prefix, families] : kFamilies) {
    for (const auto& [family, interval] : ranges.*families) {
      text += text_of(prefix + family, interval);
    }
  }
  text += fmt::format("measured_stacks: [{}]\n", fmt::join(ranges.measured_stacks, ", "));
  return text;
}

PredictionIntervals parse_intervals(const std::string& text, const std::string& origin) {
  const YamlMap yaml = YamlMap::parse(text, origin);
  PredictionIntervals ranges;
  for (const auto& [key, figure] : kFigures) ranges.*figure = read_calibrated(yaml.map(key));
  for (const std::string& key : yaml.keys()) {
    for (const auto& [prefix, families] : kFamilies) {
      if (!key.starts_with(prefix)) continue;
      (ranges.*families)[key.substr(std::strlen(prefix))] = read_calibrated(yaml.map(key));
    }
  }
  if (yaml.has("measured_stacks")) {
    const std::vector<std::string> stacks = yaml.texts("measured_stacks");
    ranges.measured_stacks = {stacks.begin(), stacks.end()};
  }
  yaml.finish();
  return ranges;
}

const PredictionIntervals& published_intervals() {
  static const PredictionIntervals ranges = load_intervals("published");
  return ranges;
}

const PredictionIntervals& engine_intervals() {
  static const PredictionIntervals ranges = load_intervals("engine");
  return ranges;
}

const PredictionInterval& step_interval(const HardwareProfile& hw) {
  const bool profiled = !hw.rates.empty() &&
                        hw.device.op_overhead_seconds.source.starts_with("measured: ") &&
                        std::all_of(hw.rates.begin(), hw.rates.end(), [](const auto& family) {
                          return family.second.source.starts_with("measured: ");
                        });
  return (profiled ? engine_intervals() : published_intervals()).plan_step.all;
}

}  // namespace longspan
