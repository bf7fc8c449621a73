#include "cli/plan_text.h"

#include <fmt/format.h>

#include <utility>

#include "base/units.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "frameworks/prediction_interval.h"
#include "planner/evaluate/fit.h"
#include "planner/strategy/knobs.h"

namespace longspan::cli {
namespace {

std::string tile_text(int64_t tokens) { return tokens == 0 ? "all rows" : format_tokens(tokens); }

// The tensors of the group that have this value: "layer_input, qkv (half of the layers)".
std::string tensors_with(std::string_view group, const Strategy& s, int64_t value) {
  std::string text;
  for (const KnobRow& row : knob_rows()) {
    if (row.group() != group || row.at.get(s) != value) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", row.name());
    const double fraction = row.at.fraction == nullptr ? 1 : row.at.fraction->get(s);
    if (fraction != 1) text += fmt::format(" ({} of layers)", percent(fraction));
  }
  return text;
}

// "keep qkv; offload layer_input; recompute mlp_inner"
std::string saved_text(const Strategy& s) {
  constexpr std::pair<Saved, const char*> kVerbs[] = {{Saved::keep, "keep"},
                                                      {Saved::host, "offload"},
                                                      {Saved::nvme, "offload to nvme"},
                                                      {Saved::recompute, "recompute"}};
  std::string text;
  for (const auto& [where, verb] : kVerbs) {
    const std::string tensors = tensors_with("saved", s, static_cast<int64_t>(where));
    if (!tensors.empty()) text += fmt::format("{}{} {}", text.empty() ? "" : "; ", verb, tensors);
  }
  return text;
}

// "parameters on device; gradients, optimizer on host"
std::string states_text(const Strategy& s) {
  std::string text;
  for (int tier = 0; tier < kTierCount; ++tier) {
    const std::string states = tensors_with("states", s, tier);
    if (states.empty()) continue;
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", states,
                        name_of(static_cast<Tier>(tier)));
  }
  if (s.moments != MomentFormat::float32)
    text += fmt::format("; moments in {}", name_of(s.moments));
  if (s.masters != MasterFormat::float32)
    text += fmt::format("; updated in {}", name_of(s.masters));
  return text;
}

std::string layout_text(const Plan& plan) {
  const Strategy& s = plan.strategy;
  std::string text = s.parallel.ranks() > 1 ? degrees_of(s.parallel) + "; " : "";
  const int64_t chunks = plan.tokens() / s.chunk_tokens;
  text += chunks == 1 ? "the sequence in one chunk"
                      : fmt::format("{} chunks of {}", chunks, format_tokens(s.chunk_tokens));
  const int64_t slices = s.parallel.pipeline.slices;
  if (slices > 1 && !s.parallel.has_pipeline()) text += fmt::format(" in {} slices", slices);
  if (s.head_groups > 1) text += fmt::format(", heads in {} groups", s.head_groups);
  if (s.kv != Tier::device) text += fmt::format(", keys and values on {}", name_of(s.kv));
  return text;
}

std::string step_text(const Prediction& prediction) {
  return fmt::format("{}, {}, MFU {} (causal)", format_seconds(prediction.step_seconds),
                     format_rate(prediction.tokens_per_second, "tokens/s"),
                     percent(prediction.mfu));
}

std::string memory_text(const Plan& plan, const std::array<int64_t, kTierCount>& peak) {
  const std::array<int64_t, kTierCount> capacity = capacities(plan.hardware);
  std::string text;
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (tier > 0 && peak[tier] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<Tier>(tier)),
                        of_capacity(peak[tier], capacity[tier]));
  }
  if (plan.hardware.devices() > 1) text += " per rank";
  const FitVerdict verdict = fit_of(plan.hardware, peak);
  text += fmt::format(": {}", name_of(verdict.fit));
  if (!verdict.reason.empty()) text += ", " + verdict.reason;
  return text;
}

// The knobs of one group of the plan file: "parameters device, optimizer host".
std::string group_text(std::string_view group, const Strategy& s) {
  std::string text;
  for (const KnobRow& row : knob_rows()) {
    if (row.group() != group) continue;
    const int64_t value = row.at.get(s);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", row.name(),
                        row.turn == Turn::tile ? tile_text(value) : text_of(row, value));
    if (row.at.fraction == nullptr) continue;
    const double fraction = row.at.fraction->get(s);
    if (fraction != 1) text += fmt::format(" x{:.3g}", fraction);
  }
  return text;
}

}  // namespace

std::string bytes_or_dash(int64_t bytes) { return bytes == 0 ? "-" : format_bytes(bytes); }

std::string of_capacity(int64_t bytes, int64_t capacity_bytes) {
  if (capacity_bytes == 0) return bytes == 0 ? "-" : format_bytes(bytes) + " of none";
  const double share = static_cast<double>(bytes) / static_cast<double>(capacity_bytes);
  return fmt::format("{} of {} ({})", format_bytes(bytes), format_bytes(capacity_bytes),
                     percent(share));
}

std::string step_interval_text(const HardwareProfile& hw, double step_seconds) {
  const PredictionInterval& interval = step_interval(hw);
  std::string low = format_seconds(step_seconds * interval.low);
  const std::string high = format_seconds(step_seconds * interval.high);
  // A common unit is printed once. This needs a single unit in each: "8.54 s", not "1 h 03 min".
  const size_t unit = low.find(' ');
  if (low.rfind(' ') == unit && high.find(' ') == high.rfind(' ') &&
      high.ends_with(low.substr(unit))) {
    low.resize(unit);
  }
  return low + " to " + high;
}

std::string headline(const Plan& plan) {
  std::string batches = counted(plan.microbatches, "microbatch", "microbatches");
  if (plan.model.micro_batch > 1) {
    batches += fmt::format(" of {} sequences", plan.model.micro_batch);
  }
  return fmt::format("{}, {}, {}{}, {}, on {}", plan.model.name, count_tokens(plan.sequence),
                     batches, plan.strategy.forward_only ? ", forward alone" : "",
                     name_of(plan.dtype), plan.hardware.name);
}

void print_line(std::string_view key, std::string_view value) { say("  {:<10}{}\n", key, value); }

void print_summary(const Plan& plan, const Prediction& prediction) {
  print_line("layout", layout_text(plan));
  const bool trains = !plan.strategy.forward_only;
  print_line("saved", trains ? saved_text(plan.strategy) : "nothing, it is the forward alone");
  print_line("states", trains ? states_text(plan.strategy)
                              : fmt::format("parameters on {}", name_of(plan.strategy.parameters)));
  print_line("step", fmt::format("{}; 90 % interval {}", step_text(prediction),
                                 step_interval_text(plan.hardware, prediction.step_seconds)));
  print_line("memory", memory_text(plan, prediction.peak_bytes));
}

namespace {

// GPUs that the engine has run on (docs/results.md).
bool has_run_engine(std::string_view device) {
  return device == "NVIDIA H100 80GB HBM3" || device == "NVIDIA H200";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> caveats_of(const HardwareProfile& hw) {
  std::vector<std::pair<std::string, std::string>> caveats;
  std::string assumed;
  const auto add = [&](const char* name, const Figure& figure) {
    const bool is_assumed =
        figure.source.starts_with("assumption") && figure.source != kGivenByUser;
    if (!is_assumed || figure.value == 0) return;
    assumed += fmt::format("{}{} of {}", assumed.empty() ? "" : ", ", name,
                           format_bytes(static_cast<int64_t>(figure.value)));
  };
  add("a host", hw.host.memory_bytes);
  add("NVMe", hw.nvme.capacity_bytes);
  if (!assumed.empty()) {
    caveats.emplace_back(
        "assumed",
        fmt::format("a node has {}; --host-memory and --nvme-capacity say what yours has",
                    assumed));
  }
  if (hw.device.backend == "cuda" && hw.devices() > 1) {
    caveats.emplace_back("untested", "the engine has run on one GPU, not on several yet");
  } else if (hw.device.backend == "cuda" && !has_run_engine(hw.device.name)) {
    caveats.emplace_back("untested",
                         fmt::format("the engine has not run on {} yet, only on an H100 "
                                     "and an H200",
                                     hw.device.name));
  } else if (hw.device.backend == "none") {
    caveats.emplace_back("untested",
                         "the engine has no backend for it; it can be planned for only");
  }
  return caveats;
}

void print_caveats(const HardwareProfile& hw) {
  for (const auto& [key, text] : caveats_of(hw)) print_line(key, text);
}

namespace {

// A line below a heading; the key column is wide enough for "between uses".
void wide_line(std::string_view key, std::string_view value) { say("  {:<16}{}\n", key, value); }

}  // namespace

void print_knobs(const Plan& plan) {
  const Strategy& s = plan.strategy;
  say("{}\n", bold("Strategy " + s.preset));
  if (s.parallel.ranks() > 1) wide_line("ranks", describe(s.parallel));
  const int64_t chunks = plan.tokens() / s.chunk_tokens;
  wide_line("chunk",
            fmt::format("{} ({}), blocks of {}", count_tokens(s.chunk_tokens),
                        counted(chunks, "chunk", "chunks"), format_tokens(s.block_tokens)));
  if (s.head_groups > 1) wide_line("heads", fmt::format("in {} groups", s.head_groups));
  const int64_t slices = s.parallel.pipeline.slices;
  if (slices > 1 && !s.parallel.has_pipeline()) {
    wide_line("slices", fmt::format("{} of {}, each passes all layers before the next", slices,
                                    count_tokens(plan.tokens() / slices)));
  }
  wide_line("keys, values", s.kv == Tier::device ? "resident on device"
                                                 : fmt::format("streamed from {}", name_of(s.kv)));
  wide_line("between uses", fmt::format("on {}", name_of(s.between_uses)));
  wide_line("saved", s.forward_only ? "nothing" : group_text("saved", s));
  wide_line("backward", fmt::format("{}{}, prefetch {}, offload window {}",
                                    s.forward_only ? "none" : name_of(s.backward_order),
                                    s.deterministic ? ", deterministic" : "", s.prefetch_depth,
                                    s.offload_window));
  wide_line("tiles", group_text("tiles", s));
  wide_line("states", s.forward_only ? fmt::format("parameters {}", name_of(s.parameters))
                                     : group_text("states", s));
  if (s.moments != MomentFormat::float32) wide_line("moments", std::string(name_of(s.moments)));
  if (s.masters != MasterFormat::float32) wide_line("masters", std::string(name_of(s.masters)));
  if (s.early_update) {
    wide_line("update", "during the backward, clipped by the gradient norm of the step before");
  }
}

void print_prediction(const Plan& plan, const Prediction& prediction) {
  say("{}\n", bold("Predicted"));
  wide_line("step", step_text(prediction));
  wide_line("", step_interval_text(plan.hardware, prediction.step_seconds) + " (90 % interval)");
  const std::array<int64_t, kTierCount> capacity = capacities(plan.hardware);
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (prediction.peak_bytes[tier] == 0 && capacity[tier] == 0) continue;
    wide_line(name_of(static_cast<Tier>(tier)),
              of_capacity(prediction.peak_bytes[tier], capacity[tier]));
  }
  const FitVerdict verdict = fit_of(plan.hardware, prediction.peak_bytes);
  wide_line("memory", verdict.reason.empty()
                          ? std::string(name_of(verdict.fit))
                          : fmt::format("{}: {}", name_of(verdict.fit), verdict.reason));
}

}  // namespace longspan::cli
