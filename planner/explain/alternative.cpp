#include "planner/explain/alternative.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/units.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/analysis.h"
#include "planner/plan/pipeline_plan.h"

namespace longspan {
namespace {

bool has_pipeline(const Plan& plan) { return plan.strategy.parallel.has_pipeline(); }

// "compute waits 3.1 % of the step for comm, 1.0 % for d2h"
std::string waits_of(const Plan& plan) {
  constexpr double kLeast = 0.001;  // of a step
  if (!is_listable(plan)) return "its program is too large to list what compute waits for";
  std::array<double, kStreamCount> seconds{};
  for (const ComputeWait& wait : compute_waits(simulate_plan(plan))) {
    seconds[static_cast<int>(wait.stream)] += wait.seconds;
  }
  std::string text;
  for (int stream = 0; stream < kStreamCount; ++stream) {
    const double share = seconds[stream] / plan.predicted.step_seconds;
    if (share < kLeast || static_cast<Stream>(stream) == Stream::compute) continue;
    text += fmt::format("{}{:.1f} %{} for {}", text.empty() ? "" : ", ", 100 * share,
                        text.empty() ? " of the step" : "", name_of(static_cast<Stream>(stream)));
  }
  return text.empty() ? "compute waits for nothing" : "compute waits " + text;
}

// A plan with a pipeline, or of a model whose layers differ.
std::string bubbles_of(const Plan& plan) {
  const PipelineStep step = pipeline_step(plan);
  double busy = 0;
  for (const PipelineRank& rank : step.ranks) busy = std::max(busy, rank.busy_seconds);
  const std::string of_sequence =
      format_seconds(busy / static_cast<double>(sequences_of_step(plan)));
  if (!has_pipeline(plan)) return fmt::format("forward and backward take {}", of_sequence);
  return fmt::format("its busiest rank computes for {}, with a bubble of {:.1f} %", of_sequence,
                     100 * step.bubble_rate);
}

std::string account_of(const Plan& plan) {
  return is_priced_by_kinds(step_request(plan)) ? bubbles_of(plan) : waits_of(plan);
}

}  // namespace

std::string why_chosen(const Plan& best, const Plan& alternative) {
  const double own = seconds_per_sequence(best), other = seconds_per_sequence(alternative);
  const std::string apart =
      fmt::format("{:.1f} % {}", 100 * std::abs(other / own - 1), other >= own ? "more" : "less");
  const std::string kind =
      has_pipeline(alternative)
          ? "with a pipeline, " + degrees_of(alternative.strategy.parallel) + ","
          : "without a pipeline";
  return fmt::format("a sequence takes {}: {}. The best plan {} takes {}: {}", format_seconds(own),
                     account_of(best), kind, apart, account_of(alternative));
}

}  // namespace longspan
