#include "hwprofiles/hardware_profile.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/nearest.h"
#include "hwprofiles/figures.h"

namespace longspan {
namespace {

// Every value, in particular a capacity in bytes, must be convertible to int64.
constexpr double kLargest = 9e18;

struct Family {
  const char* name;
  const char* unit;
};
constexpr std::array<Family, 26> kFamilies{{{"gemm_nt", "FLOP/s"},
                                            {"gemm_nn", "FLOP/s"},
                                            {"gemm_tn", "FLOP/s"},
                                            {"attention_forward", "FLOP/s"},
                                            {"attention_backward", "FLOP/s"},
                                            {"attention_forward_diagonal", "FLOP/s"},
                                            {"attention_backward_diagonal", "FLOP/s"},
                                            {"norm_forward", "element/s"},
                                            {"norm_backward", "element/s"},
                                            {"rope", "element/s"},
                                            {"activation_forward", "element/s"},
                                            {"activation_backward", "element/s"},
                                            {"loss", "element/s"},
                                            {"adamw", "element/s"},
                                            {"adamw_host", "element/s"},
                                            {"sumsq", "element/s"},
                                            {"zero", "element/s"},
                                            {"embed_forward", "element/s"},
                                            {"embed_backward", "element/s"},
                                            {"bias_gradient", "element/s"},
                                            {"add", "element/s"},
                                            {"pass", "B/s"},
                                            {"copy_h2d", "B/s"},
                                            {"copy_d2h", "B/s"},
                                            {"io_read", "B/s"},
                                            {"io_write", "B/s"}}};

std::optional<std::string> source_problem(const std::string& source) {
  for (const char* kind : {"measured: ", "vendor: ", "paper: ", "assumption: "}) {
    const std::string prefix = kind;
    if (source.starts_with(prefix) && source.size() > prefix.size()) return std::nullopt;
  }
  return fmt::format(
      "source: expected \"measured: ...\", \"vendor: ...\", \"paper: ...\" or \"assumption: ...\", "
      "got \"{}\"",
      source.substr(0, 60));
}

std::optional<std::string> date_problem(const std::string& date) {
  const auto digits = [&](size_t from, size_t count) {
    int value = 0;
    for (size_t i = from; i < from + count; ++i) {
      if (date[i] < '0' || date[i] > '9') return -1;
      value = value * 10 + (date[i] - '0');
    }
    return value;
  };
  if (date.size() == 10 && date[4] == '-' && date[7] == '-' && digits(0, 4) >= 1900) {
    constexpr std::array<int, 13> days{0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const int month = digits(5, 2);
    const int day = digits(8, 2);
    if (month >= 1 && month <= 12 && day >= 1 && day <= days[month]) return std::nullopt;
  }
  return fmt::format("date: expected a day as YYYY-MM-DD, got \"{}\"", date.substr(0, 60));
}

std::optional<std::string> unit_problem(const std::string& unit, const char* expected) {
  if (unit == expected) return std::nullopt;
  return fmt::format("unit: expected {}, got \"{}\"", expected, unit.substr(0, 60));
}

std::optional<std::string> value_problem(double value, FigureRange range) {
  const bool positive = range == FigureRange::positive || range == FigureRange::optional;
  const bool in_range = positive                             ? value > 0
                        : range == FigureRange::zero_allowed ? value >= 0
                                                             : value > 0 && value <= 1;
  if (std::isfinite(value) && in_range && value <= kLargest) return std::nullopt;
  const char* expected = positive                             ? "a finite number > 0"
                         : range == FigureRange::zero_allowed ? "a finite number >= 0"
                                                              : "a fraction in (0, 1]";
  return fmt::format("value: expected {}{}, got {}", expected,
                     value > kLargest ? " below 9e18" : "", value);
}

std::optional<std::string> figure_problem(const Figure& figure, const FigureRule& rule) {
  if (auto problem = unit_problem(figure.unit, rule.unit)) return problem;
  if (auto problem = value_problem(figure.value, rule.range)) return problem;
  if (auto problem = source_problem(figure.source)) return problem;
  return date_problem(figure.date);
}

std::optional<std::string> points_problem(const std::vector<RatePoint>& points) {
  if (points.empty()) return "expected at least one point";
  std::set<std::array<double, 3>> shapes;
  for (size_t i = 0; i < points.size(); ++i) {
    const RatePoint& point = points[i];
    for (const double extent : point.shape) {
      if (!std::isfinite(extent) || extent < 1) {
        return fmt::format("row {}: expected shape numbers >= 1, got {}", i, extent);
      }
    }
    if (!std::isfinite(point.rate) || point.rate <= 0) {
      return fmt::format("row {}: expected a rate > 0, got {}", i, point.rate);
    }
    if (!shapes.insert(point.shape).second) {
      return fmt::format("row {}: the shape stands in the table twice", i);
    }
  }
  return std::nullopt;
}

std::optional<std::string> tiling_problem(const Tiling& tiling) {
  for (const Tiling::Shape& shape : tiling.shapes) {
    for (const double extent : {shape.rows, shape.columns}) {
      if (!std::isfinite(extent) || extent < 1) {
        return fmt::format("expected rows and columns >= 1, got {}", extent);
      }
    }
    if (!(shape.rate > 0 && shape.rate <= 1)) {
      return fmt::format("expected a rate in (0, 1], got {}", shape.rate);
    }
  }
  if (!(tiling.waited >= 0 && tiling.waited <= 1)) {
    return fmt::format("expected waited in [0, 1], got {}", tiling.waited);
  }
  if (!std::isfinite(tiling.ramp) || tiling.ramp < 0) {
    return fmt::format("expected a ramp >= 0, got {}", tiling.ramp);
  }
  return std::nullopt;
}

std::string kernel_list(const HardwareProfile& hw) {
  std::string list;
  for (const auto& [kernel, tables] : hw.attention_kernels) {
    list += (list.empty() ? "" : ", ") + kernel;
  }
  return list.empty() ? "none" : list;
}

// The fault of the table at `section`.`name`.
std::optional<HardwareProblem> table_problem(const std::string& section, const std::string& name,
                                             const RateTable& table) {
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                    [&name](const Family& f) { return name == f.name; });
  if (family == kFamilies.end()) {
    std::vector<std::string> known;
    known.reserve(kFamilies.size());
    for (const Family& f : kFamilies) known.emplace_back(f.name);
    return HardwareProblem{section, name, "unknown kernel family" + nearest_hint(name, known)};
  }
  const std::string inside = section + "." + name;
  if (auto what = unit_problem(table.unit, family->unit)) {
    return HardwareProblem{section, name, *what};
  }
  if (auto what = source_problem(table.source)) return HardwareProblem{section, name, *what};
  if (auto what = date_problem(table.date)) return HardwareProblem{section, name, *what};
  if (auto what = points_problem(table.points)) return HardwareProblem{inside, "points", *what};
  if (auto what = tiling_problem(table.tiling)) return HardwareProblem{inside, "tiling", *what};
  return std::nullopt;
}

bool is_attention(const std::string& family) { return family.starts_with("attention_"); }

std::optional<HardwareProblem> rates_problem(const HardwareProfile& hw) {
  for (const auto& [name, table] : hw.rates) {
    if (auto problem = table_problem("rates", name, table)) return problem;
  }
  for (const auto& [kernel, tables] : hw.attention_kernels) {
    const std::string section = "attention_kernels." + kernel;
    for (const auto& [name, table] : tables) {
      if (auto problem = table_problem(section, name, table)) return problem;
      if (!is_attention(name)) {
        return HardwareProblem{section, name, "expected attention only; put it into rates"};
      }
    }
  }
  if (hw.attention_kernels.empty() ? hw.attention_kernel.empty()
                                   : hw.attention_kernels.contains(hw.attention_kernel)) {
    return std::nullopt;
  }
  return HardwareProblem{"", "attention_kernel",
                         fmt::format("expected one of attention_kernels ({}), got \"{}\"",
                                     kernel_list(hw), hw.attention_kernel.substr(0, 60))};
}

std::optional<HardwareProblem> overhead_problem(const HardwareProfile& hw) {
  double sum = 0;
  for (const auto& [name, term] : hw.device.overhead) {
    const FigureRule rule{"device.overhead", name.c_str(), "B", FigureRange::zero_allowed};
    if (auto what = figure_problem(term, rule)) {
      return HardwareProblem{"device.overhead", name, *what};
    }
    sum += term.value;
  }
  if (sum <= hw.device.reserved_bytes.value) return std::nullopt;
  return HardwareProblem{"device", "overhead",
                         fmt::format("expected terms that add up to at most reserved_bytes ({}), "
                                     "got {}",
                                     hw.device.reserved_bytes.value, sum)};
}

std::optional<HardwareProblem> count_problem(const char* section, const char* key, int64_t value,
                                             int64_t max) {
  if (value >= 1 && value <= max) return std::nullopt;
  return HardwareProblem{section, key,
                         fmt::format("expected a whole number from 1 to {}, got {}", max, value)};
}

}  // namespace

std::optional<HardwareProblem> find_problem(const HardwareProfile& hw) {
  if (hw.name.empty()) return HardwareProblem{"", "name", "expected text, got nothing"};
  if (auto problem = count_problem("", "nodes", hw.nodes, 65536)) return problem;
  if (auto problem = count_problem("", "devices_per_node", hw.devices_per_node, 1024)) {
    return problem;
  }
  if (hw.device.name.empty()) {
    return HardwareProblem{"device", "name", "expected text, got nothing"};
  }
  const std::string& backend = hw.device.backend;
  if (backend != "cpu" && backend != "cuda" && backend != "none") {
    return HardwareProblem{
        "device", "backend",
        fmt::format("expected cpu, cuda or none, got \"{}\"", backend.substr(0, 60))};
  }
  const int64_t capability = hw.device.compute_capability;
  if (capability != 0 && (capability < 10 || capability > 999)) {
    return HardwareProblem{
        "device", "compute_capability",
        fmt::format("expected 10 * major + minor, as 90 for an H100, got {}", capability)};
  }
  if (auto problem = count_problem("host", "cores", hw.host.cores, 65536)) return problem;
  if (auto problem = count_problem("link", "devices_sharing", hw.link.devices_sharing, 1024)) {
    return problem;
  }
  std::optional<HardwareProblem> found;
  visit_figures(hw, [&](const FigureRule& rule, const Figure& figure) {
    if (found || is_missing(rule, figure)) return;
    if (auto what = figure_problem(figure, rule)) {
      found = HardwareProblem{rule.section, rule.key, *what};
    }
  });
  if (found) return found;
  if (hw.device.reserved_bytes.value >= hw.device.memory_bytes.value) {
    return HardwareProblem{
        "device", "reserved_bytes",
        fmt::format("expected less than memory_bytes ({}), got {}", hw.device.memory_bytes.value,
                    hw.device.reserved_bytes.value)};
  }
  if (auto problem = overhead_problem(hw)) return problem;
  return rates_problem(hw);
}

int64_t overhead_bytes(const HardwareProfile& hw) {
  double bytes = 0;
  for (const auto& [name, term] : hw.device.overhead) bytes += term.value;
  return static_cast<int64_t>(bytes);
}

HardwareProfile with_devices(const HardwareProfile& hw, int64_t devices) {
  if (devices == hw.devices()) return hw;
  const int64_t per_node = hw.devices_per_node;
  if (devices < 1 || devices > hw.devices() || (devices > per_node && devices % per_node != 0)) {
    std::string expected = fmt::format("1 to {}", std::min(per_node, hw.devices()));
    if (hw.nodes > 1)
      expected += fmt::format(", or a multiple of {} up to {}", per_node, hw.devices());
    throw bad_input(
        "{} has {} device{}: expected {}, got {}; counts before the name make more (8x{})", hw.name,
        hw.devices(), hw.devices() == 1 ? "" : "s", expected, devices, hw.name);
  }
  HardwareProfile used = hw;
  used.name = fmt::format("{} of {}", devices, hw.name);
  used.nodes = std::max<int64_t>(1, devices / per_node);
  used.devices_per_node = devices / used.nodes;
  return used;
}

HardwareProfile with_attention_kernel(const HardwareProfile& hw, const std::string& kernel) {
  const auto tables = hw.attention_kernels.find(kernel);
  if (tables == hw.attention_kernels.end()) {
    throw bad_input("{} has no attention kernel \"{}\": expected one of its own ({})", hw.name,
                    kernel.substr(0, 60), kernel_list(hw));
  }
  HardwareProfile chosen = hw;
  chosen.attention_kernel = kernel;
  std::erase_if(chosen.rates, [](const auto& entry) { return is_attention(entry.first); });
  chosen.rates.insert(tables->second.begin(), tables->second.end());
  return chosen;
}

int64_t devices_per_processor(const HardwareProfile& hw) {
  return hw.device.backend == "cpu" ? hw.devices_per_node : 1;
}

void validate(const HardwareProfile& hw, const std::string& origin) {
  if (const auto problem = find_problem(hw)) {
    throw bad_input("{}: {}{}{}: {}", origin, problem->section, problem->section.empty() ? "" : ".",
                    problem->key, problem->what);
  }
}

}  // namespace longspan
