#include "cli/plan_text.h"

#include <fmt/format.h>

#include <utility>

#include "base/units.h"
#include "cli/terminal.h"
#include "planner/evaluate/fit.h"
#include "planner/reference/range.h"
#include "planner/strategy/knobs.h"

namespace longspan::cli {
namespace {

void print_line(std::string_view key, const std::string& value) {
  fmt::print("  {:<16}{}\n", key, value);
}

std::string tile_text(int64_t tokens) { return tokens == 0 ? "all rows" : format_tokens(tokens); }

// "parameters device, optimizer host": the knobs of a group of the plan file.
std::string group_text(std::string_view group, const Strategy& s) {
  std::string text;
  for (const KnobRow& row : knob_rows()) {
    if (row.group() != group) continue;
    const int64_t value = row.at.get(s);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", row.name(),
                        row.turn == Turn::tile ? tile_text(value) : text_of(row, value));
    if (row.at.policy == nullptr) continue;
    const double fraction = (s.*row.at.policy).fraction;
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

std::string step_range_text(const HardwareProfile& hw, double step_seconds) {
  const Range& range = step_range(hw);
  std::string low = format_seconds(step_seconds * range.low);
  const std::string high = format_seconds(step_seconds * range.high);
  // A unit that both have is said once: "8.54 s", but not "1 h 03 min", has one word of it.
  const size_t unit = low.find(' ');
  if (low.rfind(' ') == unit && high.find(' ') == high.rfind(' ') &&
      high.ends_with(low.substr(unit))) {
    low.resize(unit);
  }
  return low + " to " + high;
}

std::string headline(const Plan& plan) {
  return fmt::format("{}, {} tokens, {} microbatch{}, {}, on {}", plan.model.name,
                     format_tokens(plan.sequence), plan.micro_batches,
                     plan.micro_batches == 1 ? "" : "es", name_of(plan.dtype), plan.hardware.name);
}

void print_knobs(const Plan& plan) {
  const Strategy& s = plan.strategy;
  fmt::print("{}\n", bold("Strategy " + s.preset));
  if (s.parallel.ranks() > 1) print_line("ranks", describe(s.parallel));
  const int64_t chunks = plan.sequence / s.chunk_tokens;
  print_line("chunk",
             fmt::format("{} tokens ({} chunk{}), blocks of {}", format_tokens(s.chunk_tokens),
                         chunks, chunks == 1 ? "" : "s", format_tokens(s.block_tokens)));
  if (s.head_groups > 1) print_line("heads", fmt::format("in {} groups", s.head_groups));
  print_line("keys, values", s.kv == Tier::device ? "resident on device" : "streamed from host");
  print_line("between uses", fmt::format("wait on {}", name_of(s.idle)));
  print_line("saved", group_text("saved", s));
  print_line(
      "backward",
      fmt::format("{}{}, prefetch {}, offload window {}", name_of(s.backward_order),
                  s.deterministic ? ", deterministic" : "", s.prefetch_depth, s.offload_window));
  print_line("tiles", group_text("tiles", s));
  print_line("states", group_text("states", s));
}

void print_prediction(const Plan& plan, const Prediction& prediction) {
  fmt::print("{}\n", bold("Predicted"));
  print_line("step", fmt::format("{}, {}, MFU {} (causal)", format_seconds(prediction.step_seconds),
                                 format_rate(prediction.tokens_per_second, "tokens/s"),
                                 percent(prediction.mfu)));
  print_line("", step_range_text(plan.hardware, prediction.step_seconds) + " (90 % interval)");
  const std::array<int64_t, kTierCount> capacity = capacities(plan.hardware);
  for (int tier = 0; tier < kTierCount; ++tier) {
    if (prediction.peak_bytes[tier] == 0 && capacity[tier] == 0) continue;
    print_line(name_of(static_cast<Tier>(tier)),
               of_capacity(prediction.peak_bytes[tier], capacity[tier]));
  }
  const FitVerdict verdict = fit_of(plan.hardware, prediction.peak_bytes);
  print_line("memory", verdict.reason.empty()
                           ? std::string(name_of(verdict.fit))
                           : fmt::format("{}: {}", name_of(verdict.fit), verdict.reason));
}

}  // namespace longspan::cli
