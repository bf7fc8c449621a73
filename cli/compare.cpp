// longspan compare: the error of a plan's prediction against a run, and the op kinds that cause it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/quantities.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/plan_text.h"
#include "cli/run_record.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "planner/explain/analysis.h"

namespace longspan::cli {
namespace {

struct CompareFlags {
  std::string plan;
  std::string run;
  std::string tolerance = "25%";
};

struct KindDifference {
  std::string kind;
  double predicted_seconds = 0;
  double measured_seconds = 0;
  double share = 0;  // this kind's part of the summed absolute differences of all kinds
};

struct Comparison {
  Prediction predicted;
  RunRecord measured;
  double predicted_overlap_seconds = 0;
  double tolerance = 0;
  double time_error = 0;  // measured / predicted - 1
  bool time_agrees = false;
  bool memory_agrees = false;
  std::vector<KindDifference> kinds;
};

// "25%" or "0.25".
std::vector<KindDifference> compare_kinds(const Simulated& s, const RunRecord& run) {
  std::vector<KindDifference> kinds;
  double total = 0;
  for (const KindTime& kind : time_by_kind(s.program, s.timeline)) {
    KindDifference difference{std::string(name_of(kind.kind)), kind.seconds, 0, 0};
    const auto it = run.kind_seconds.find(difference.kind);
    if (it == run.kind_seconds.end()) {
      throw bad_input("the run has no figure for {}; it is not a run of this plan",
                      difference.kind);
    }
    difference.measured_seconds = it->second;
    total += std::abs(difference.measured_seconds - difference.predicted_seconds);
    kinds.push_back(difference);
  }
  for (KindDifference& kind : kinds) {
    if (total > 0) kind.share = std::abs(kind.measured_seconds - kind.predicted_seconds) / total;
  }
  std::stable_sort(
      kinds.begin(), kinds.end(),
      [](const KindDifference& a, const KindDifference& b) { return a.share > b.share; });
  return kinds;
}

Comparison compare(const CompareFlags& flags, const Plan& plan) {
  Comparison result;
  result.tolerance = parse_share(flags.tolerance, "--tolerance");
  result.measured = read_run_record(flags.run);
  if (result.measured.plan != nlohmann::json(plan_summary_json(plan))) {
    throw bad_input("{}: it is a run of another plan than {} (model, length or knobs differ)",
                    flags.run, flags.plan);
  }
  const Simulated s = simulate_plan(plan);
  result.predicted = s.prediction;
  result.predicted_overlap_seconds = overlapped_copy_seconds(s.program, s.timeline);
  result.kinds = compare_kinds(s, result.measured);
  result.time_error = result.measured.step_seconds / result.predicted.step_seconds - 1;
  result.time_agrees = std::abs(result.time_error) <= result.tolerance;
  result.memory_agrees = result.measured.peak_bytes == result.predicted.peak_bytes;
  return result;
}

Json document_of(const Comparison& c) {
  Json kinds = Json::array();
  for (const KindDifference& kind : c.kinds) {
    kinds.push_back({{"op", kind.kind},
                     {"predicted_seconds", kind.predicted_seconds},
                     {"measured_seconds", kind.measured_seconds},
                     {"share_of_difference", kind.share}});
  }
  Json measured = {{"steps", c.measured.steps},
                   {"step_seconds", c.measured.step_seconds},
                   {"mfu", c.measured.mfu},
                   {"overlapped_copy_seconds", c.measured.overlapped_copy_seconds}};
  put_tiers(measured, c.measured.peak_bytes);
  Json predicted = prediction_json(c.predicted);
  predicted["overlapped_copy_seconds"] = c.predicted_overlap_seconds;
  return {{"predicted", std::move(predicted)}, {"measured", std::move(measured)},
          {"time_error", c.time_error},        {"tolerance", c.tolerance},
          {"time_agrees", c.time_agrees},      {"memory_agrees", c.memory_agrees},
          {"op_kinds", std::move(kinds)}};
}

std::string signed_percent(double share) { return fmt::format("{:+.1f} %", share * 100); }

void print_text(const Plan& plan, const Comparison& c) {
  say("{}\n", bold(headline(plan)));
  Table table({{"", false}, {"predicted"}, {"measured"}, {"difference"}});
  table.add({"step", format_seconds(c.predicted.step_seconds),
             format_seconds(c.measured.step_seconds), signed_percent(c.time_error)});
  table.add({"MFU", percent(c.predicted.mfu), percent(c.measured.mfu),
             signed_percent(c.measured.mfu / c.predicted.mfu - 1)});
  table.add({"copies during compute", format_seconds(c.predicted_overlap_seconds),
             format_seconds(c.measured.overlapped_copy_seconds), ""});
  for (int tier = 0; tier < kTierCount; ++tier) {
    const int64_t expected = c.predicted.peak_bytes[tier];
    const int64_t actual = c.measured.peak_bytes[tier];
    if (expected == 0 && actual == 0) continue;
    table.add({std::string(name_of(static_cast<Tier>(tier))) + " bytes",
               fmt::format("{}", expected), fmt::format("{}", actual),
               expected == actual ? "equal" : fmt::format("{:+}", actual - expected)});
  }
  table.print();
  say("{}\n", bold("By op kind, the largest difference first"));
  Table kinds({{"op", false}, {"predicted"}, {"measured"}, {"ratio"}, {"share of the difference"}});
  for (const KindDifference& kind : c.kinds) {
    const std::string ratio =
        kind.predicted_seconds > 0
            ? fmt::format("{:.3f}", kind.measured_seconds / kind.predicted_seconds)
            : "-";
    kinds.add({kind.kind, format_seconds(kind.predicted_seconds),
               format_seconds(kind.measured_seconds), ratio, percent(kind.share)});
  }
  kinds.print();
  say("Step time: {} the tolerance of {}. Memory: {}.\n", c.time_agrees ? "within" : "OUTSIDE",
      percent(c.tolerance), c.memory_agrees ? "equal to the byte" : "DIFFERENT");
}

int run(const CompareFlags& flags, bool json) {
  const Plan plan = read_plan(flags.plan);
  warn_of_disturbance(plan.hardware);
  check_listable(plan, flags.plan);
  const Comparison comparison = compare(flags, plan);
  if (json) {
    print_json(document_of(comparison));
  } else {
    print_text(plan, comparison);
  }
  return comparison.time_agrees && comparison.memory_agrees ? 0 : 1;
}

}  // namespace

void add_compare(Verb& program) {
  auto flags = std::make_shared<CompareFlags>();
  Verb verb = program.add_verb("compare", "Predicted against measured, op by op",
                               "longspan compare plan.yaml run.json --tolerance 10%");
  verb.add_option("plan", flags->plan, "The plan's file").required();
  verb.add_option("run", flags->run, "What longspan run -o wrote").required();
  verb.add_option("--tolerance", flags->tolerance,
                  "Fail if the error of the step time exceeds this");
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
