#include "cli/inputs.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include "base/error.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/text.h"
#include "hwprofiles/catalog.h"
#include "hwprofiles/figures.h"

namespace longspan::cli {
namespace {

void override_figure(Figure& figure, const std::string& text, const char* flag) {
  if (text.empty()) return;
  figure = {static_cast<double>(parse_bytes(text, flag)), "B", kGivenByUser, today()};
}

std::string key_of(const FigureRule& rule) {
  return std::string(rule.section) + (*rule.section == 0 ? "" : ".") + rule.key;
}

void set_figure(HardwareProfile& hw, const std::string& key, const std::string& text) {
  std::vector<std::string> known;
  bool is_set = false;
  visit_figures(hw, [&](const FigureRule& rule, Figure& figure) {
    known.push_back(key_of(rule));
    if (known.back() != key) return;
    const std::string what = "--set: " + key;
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
      if (rule.unit != std::string_view("B")) {
        const std::string of =
            rule.unit == std::string_view("1") ? "" : " of " + std::string(rule.unit);
        throw bad_input("{}: expected a number{}, got \"{}\"", what, of, text);
      }
      value = static_cast<double>(parse_bytes(text, what));
    }
    figure = {value, rule.unit, kGivenByUser, today()};
    is_set = true;
  });
  if (is_set) return;
  const std::string hint = nearest_hint(key, known);
  throw bad_input("--set: \"{}\" is no figure of a hardware profile{}", key.substr(0, 60),
                  hint.empty() ? "; `longspan hw show` lists them" : hint);
}

}  // namespace

void HardwareFlags::add_to(Verb& verb) {
  verb.add_option("--hw", reference,
                  "Hardware: a catalog name with optional counts (8xh100-80g), a YAML file, or "
                  "local (see longspan profile)")
      .required();
  verb.add_option("--device-memory", device_memory, "Memory of a device, e.g. 64MiB");
  verb.add_option(
      "--reserve", reserve,
      "Memory of each device that other programs hold, e.g. 20GiB for a rollout engine");
  verb.add_option("--host-memory", host_memory, "Memory of a node's host, e.g. 1GiB");
  verb.add_option("--nvme-capacity", nvme_capacity, "File storage of a node, e.g. 1TiB; 0: none");
  verb.add_flag("--no-nvme", no_nvme, "Use no file storage");
  verb.add_option("--set", set,
                  "Other figures of the hardware as `hw show` names them, e.g. "
                  "link.h2d_bandwidth=12e9,host.memory_bytes=512GiB");
  verb.add_option("--gpus", gpus, "Devices to use, a rank on each; 0: all there are");
}

HardwareProfile HardwareFlags::load_whole() const {
  if (gpus < 0) throw bad_input("--gpus: expected a number >= 0, got {}", gpus);
  HardwareProfile hw = load_hardware(reference);
  if (gpus > 0) hw = with_devices(hw, gpus);
  if (no_nvme && !nvme_capacity.empty() && nvme_capacity != "0") {
    throw bad_input("--no-nvme: --nvme-capacity {} gives some; leave one of them out",
                    nvme_capacity);
  }
  set_figures(hw, set);
  override_capacities(hw, device_memory, host_memory, no_nvme ? "0" : nvme_capacity);
  warn_of_disturbance(hw);
  return hw;
}

int64_t HardwareFlags::reserve_bytes() const {
  return reserve.empty() || reserve == "0" ? 0 : parse_bytes(reserve, "--reserve");
}

HardwareProfile HardwareFlags::load() const {
  HardwareProfile hw = load_whole();
  if (reserve.empty()) return hw;
  Figure& memory = hw.device.memory_bytes;
  const double left = memory.value - static_cast<double>(reserve_bytes());
  if (left <= hw.device.reserved_bytes.value) {
    throw bad_input("--reserve: {} of the {} of {} leaves nothing to train with", reserve,
                    format_bytes(static_cast<int64_t>(memory.value)), hw.device.name);
  }
  memory = {left, "B", kGivenByUser, today()};
  return hw;
}

namespace {

// Percent from a factor, such as "1.5".
int64_t percent_of_mean(const std::string& text, const char* flag) {
  constexpr double kMost = 10'000;
  double factor = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, factor);
  if (read.ec != std::errc() || read.ptr != end || !(factor >= 1 && factor <= kMost)) {
    throw bad_input("{}: expected {}a factor from 1 to 10000, got \"{}\"", flag,
                    flag == std::string_view("--expert-capacity") ? "worst or " : "", text);
  }
  return static_cast<int64_t>(std::ceil(factor * 100 - 1e-9));
}

}  // namespace

void ParallelFlags::add_to(Verb& verb) {
  const auto degree = [&](const char* flag, std::optional<int64_t>& value, const char* what) {
    verb.add_option(flag, value, what).within(1, kMostRanks);
  };
  degree("--data", choice.data, "Replicas that train on sequences of their own");
  degree("--tensor", choice.tensor, "Ranks that every layer is cut up for (Megatron's TP-SP)");
  degree("--ring", choice.ring, "Ranks that keys and values travel around");
  degree("--ulysses", choice.ulysses, "Ranks that exchange tokens for heads");
  degree("--expert", choice.expert,
         "Ranks, of those with other tokens, that a layer's experts are distributed over");
  verb.add_option("--expert-capacity", expert_capacity,
                  "Rows of experts that a rank has memory for, over the mean: worst or a factor, "
                  "such as 1.5");
  verb.add_option("--expert-imbalance", expert_imbalance,
                  "Rows of the rank with most, over the mean, that times are predicted for");
  degree("--pipeline", choice.pipeline, "Stages of a pipeline; 1: none. Not given: the best");
  verb.add_option("--schedule", choice.schedule,
                  "Pipeline schedule; see `schedule list`, except those marked `not in plans`");
  verb.add_option("--virtual", choice.virtual_stages, "Stages on each rank of a pipeline")
      .within(1, kMostRanks);
  verb.add_option("--in-flight", choice.in_flight,
                  "Limit on microbatches in flight on a rank, for zb-auto, zb-v and v-adaptive")
      .within(0, kMostRanks);
  verb.add_option("--slices", choice.slices,
                  "Parts of a sequence that pass all stages or layers one by one")
      .within(1, kMostRanks);
  verb.add_option("--zero", choice.zero, "ZeRO stage, 0 to 3").within(0, 3);
  verb.add_flag("--no-overlap", no_overlap, "Let compute wait for every exchange");
}

ParallelChoice ParallelFlags::load() const {
  ParallelChoice result = choice;
  if (no_overlap) result.overlap = false;
  if (expert_capacity != "worst") {
    result.expert_capacity = percent_of_mean(expert_capacity, "--expert-capacity");
  }
  result.expert_imbalance = percent_of_mean(expert_imbalance, "--expert-imbalance");
  return result;
}

void add_forward_flag(Verb& verb, bool& value) {
  verb.add_flag("--forward-only", value,
                "The forward alone: the loss and log-probabilities of tokens, nothing is trained");
}

Plan load_plan(const std::filesystem::path& path, bool forward_only) {
  Plan plan = read_plan(path);
  return forward_only && !plan.strategy.forward_only ? forward_plan(std::move(plan)) : plan;
}

void add_deterministic_flag(Verb& verb, bool& value) {
  verb.add_flag("--deterministic", value,
                "The same bits from run to run on a GPU too: attention's backward is then slower");
}

std::vector<int64_t> parse_lengths(const std::string& text, const char* what) {
  std::vector<int64_t> lengths;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    lengths.push_back(parse_tokens(text.substr(begin, end - begin), what));
    begin = end + 1;
  }
  std::sort(lengths.begin(), lengths.end());
  if (const auto twice = std::adjacent_find(lengths.begin(), lengths.end());
      twice != lengths.end()) {
    throw bad_input("{}: {} is given twice; expected each length once", what,
                    format_tokens(*twice));
  }
  return lengths;
}

void check_output(const std::filesystem::path& path, const char* flag) {
  if (path.empty()) return;
  try {
    check_writable(path);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}: {}", flag, e.what()));
  }
}

void warn_of_disturbance(const HardwareProfile& hw) {
  constexpr double kMuch = 0.3;
  if (hw.disturbed_share.value <= kMuch) return;
  print_warning(fmt::format(
      "hardware {}: {} of the timings of its profile were disturbed by other processes; profile "
      "again on a quiet machine before you rely on times",
      hw.name, percent(hw.disturbed_share.value)));
}

void override_capacities(HardwareProfile& hw, const std::string& device_memory,
                         const std::string& host_memory, const std::string& nvme_capacity) {
  override_figure(hw.device.memory_bytes, device_memory, "--device-memory");
  override_figure(hw.host.memory_bytes, host_memory, "--host-memory");
  const bool without_storage = nvme_capacity == "0";
  if (without_storage) {
    hw.nvme.capacity_bytes = {0, "B", kGivenByUser, today()};
  } else {
    override_figure(hw.nvme.capacity_bytes, nvme_capacity, "--nvme-capacity");
  }
  if (!device_memory.empty() && hw.device.memory_bytes.value <= hw.device.reserved_bytes.value) {
    throw bad_input(
        "--device-memory: {} leaves nothing after the {} that {} reserves", device_memory,
        format_bytes(static_cast<int64_t>(hw.device.reserved_bytes.value)), hw.device.name);
  }
  if (!nvme_capacity.empty() && !without_storage &&
      !(hw.nvme.read_bandwidth.value > 0 && hw.nvme.write_bandwidth.value > 0)) {
    throw bad_input("--nvme-capacity: {} has no file tier, so there is no bandwidth to plan with",
                    hw.name);
  }
  validate(hw, "command line");
}

void set_figures(HardwareProfile& hw, const std::string& settings) {
  for (size_t begin = 0; begin < settings.size();) {
    const size_t end = std::min(settings.find(',', begin), settings.size());
    const std::string setting = settings.substr(begin, end - begin);
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      throw bad_input("--set: expected KEY=VALUE such as link.h2d_bandwidth=12e9, got \"{}\"",
                      setting.substr(0, 60));
    }
    set_figure(hw, setting.substr(0, equals), setting.substr(equals + 1));
    begin = end + 1;
  }
  if (!settings.empty()) validate(hw, "--set");
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

}  // namespace longspan::cli
