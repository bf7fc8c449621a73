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
#include "planner/pipeline/rank_program.h"
#include "planner/plan/pipeline_plan.h"

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

// A stage of a pipeline, or a rank of it.
struct StageDifference {
  double predicted_busy = 0;
  double measured_busy = 0;  // mean over the ranks of the stage
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
  std::vector<StageDifference> stages;  // of a pipeline
  double predicted_bubble = 0, measured_bubble = 0;
};

// "25%" or "0.25".
std::vector<KindDifference> compare_kinds(const Program& program, const Timeline& timeline,
                                          const RunRecord& run) {
  std::vector<KindDifference> kinds;
  double total = 0;
  for (const KindTime& kind : time_by_kind(program, timeline)) {
    // Messages between stages wait; that is a stage's idle time.
    if (is_message(kind.kind)) continue;
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

// The figures of a program whose predicted times are those of a pipeline as a whole: those of rank
// 0, each op alone.
void compare_pipeline(const Plan& plan, Comparison& result) {
  const PipelineStep step = pipeline_step(plan);
  result.predicted = prediction_of(plan, step);
  const Program program = program_of_rank(step_request(plan), step.schedule, 0);
  const CostModel cost(plan.hardware, plan.dtype);
  const std::vector<double> durations = cost.durations(program);
  Timeline alone;
  for (const Op& op : program.ops) alone.spans.push_back({0, durations[op.shape]});
  result.kinds = compare_kinds(program, alone, result.measured);

  const std::vector<double>& busy = result.measured.busy_seconds;
  const size_t stages = step.ranks.size(), of_stage = busy.size() / stages;
  if (of_stage == 0) {
    throw bad_input("the run has no figures of {} ranks; run the plan again", stages);
  }
  double predicted = 0, measured = 0;
  for (size_t stage = 0; stage < stages; ++stage) {
    StageDifference& of = result.stages.emplace_back();
    of.predicted_busy = step.ranks[stage].busy_seconds;
    for (size_t rank = 0; rank < of_stage; ++rank) {
      of.measured_busy += busy[stage * of_stage + rank] / static_cast<double>(of_stage);
    }
    predicted += of.predicted_busy;
    measured += of.measured_busy;
  }
  const auto bubble = [&](double all, double seconds) {
    return 1 - all / (static_cast<double>(stages) * seconds);
  };
  result.predicted_bubble = bubble(predicted, result.predicted.step_seconds);
  result.measured_bubble = bubble(measured, result.measured.step_seconds);
}

Comparison compare(const CompareFlags& flags, const Plan& plan) {
  Comparison result;
  result.tolerance = parse_share(flags.tolerance, "--tolerance");
  result.measured = read_run_record(flags.run);
  const std::optional<uint32_t>& trained = result.measured.plan_crc32;
  if (result.measured.plan != nlohmann::json(plan_summary_json(plan)) ||
      (trained && *trained != checksum_of(plan))) {
    throw bad_input(
        "{}: it is a run of another plan than {} (the model, length, knobs or lists differ)",
        flags.run, flags.plan);
  }
  if (plan.strategy.parallel.has_pipeline()) {
    compare_pipeline(plan, result);
  } else {
    const Simulated s = simulate_plan(plan);
    result.predicted = prediction_of(plan, s);
    result.predicted_overlap_seconds = overlapped_copy_seconds(s.program, s.timeline);
    result.kinds = compare_kinds(s.program, s.timeline, result.measured);
  }
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
  Json document = {{"predicted", std::move(predicted)}, {"measured", std::move(measured)},
                   {"time_error", c.time_error},        {"tolerance", c.tolerance},
                   {"time_agrees", c.time_agrees},      {"memory_agrees", c.memory_agrees},
                   {"op_kinds", std::move(kinds)}};
  if (c.stages.empty()) return document;
  Json stages = Json::array();
  for (const StageDifference& stage : c.stages) {
    stages.push_back({{"predicted_busy_seconds", stage.predicted_busy},
                      {"measured_busy_seconds", stage.measured_busy}});
  }
  document["pipeline"] = {{"predicted_bubble_rate", c.predicted_bubble},
                          {"measured_bubble_rate", c.measured_bubble},
                          {"ranks", std::move(stages)}};
  return document;
}

void print_stages(const Comparison& c) {
  say("{}\n", bold("Ranks of the pipeline"));
  Table table({{"rank"}, {"busy, predicted"}, {"measured"}, {"idle, predicted"}, {"measured"}});
  const double predicted = c.predicted.step_seconds, measured = c.measured.step_seconds;
  for (size_t rank = 0; rank < c.stages.size(); ++rank) {
    const StageDifference& stage = c.stages[rank];
    table.add({fmt::format("{}", rank), format_seconds(stage.predicted_busy),
               format_seconds(stage.measured_busy), percent(1 - stage.predicted_busy / predicted),
               percent(1 - stage.measured_busy / measured)});
  }
  table.print();
  say("  the mean idle share of a step is the bubble rate: {} predicted, {} measured\n",
      percent(c.predicted_bubble), percent(c.measured_bubble));
}

std::string signed_percent(double share) { return fmt::format("{:+.1f} %", share * 100); }

void print_text(const Plan& plan, const Comparison& c) {
  say("{}\n", bold(headline(plan)));
  Table table({{"", false}, {"predicted"}, {"measured"}, {"difference"}});
  table.add({"step", format_seconds(c.predicted.step_seconds),
             format_seconds(c.measured.step_seconds), signed_percent(c.time_error)});
  table.add({"MFU", percent(c.predicted.mfu), percent(c.measured.mfu),
             signed_percent(c.measured.mfu / c.predicted.mfu - 1)});
  if (c.stages.empty())
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
  if (!c.stages.empty()) print_stages(c);
  say("{}\n", bold(c.stages.empty() ? "By op kind, the largest difference first"
                                    : "By op kind on rank 0, the largest difference first"));
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
