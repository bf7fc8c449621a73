// longspan max-seq: the longest sequence that fits, by strategy, its limiting factor and remedies.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/on_framework.h"
#include "cli/plan_text.h"
#include "cli/question_flags.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/training_flags.h"
#include "frameworks/prediction_interval.h"
#include "models/catalog.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"

namespace longspan::cli {
namespace {

struct MaxSeqFlags {
  std::string model;
  HardwareFlags hardware;
  QuestionFlags question;
  TrainingFlags training;
  std::string strategy = "all";
  std::string granularity = "256";
  std::string output;
  FrameworkFlags framework;
};

// Step time limits for which the longest sequence is also shown, and the name of their column.
struct StepTime {
  double seconds;
  const char* name;
};
constexpr StepTime kStepTimes[] = {{600, "<= 10 min"}, {3600, "<= 1 h"}};

MaxSequenceOptions options_of(const MaxSeqFlags& flags) {
  MaxSequenceOptions options;
  options.granularity = parse_tokens(flags.granularity, "--granularity");
  flags.question.load(options);
  for (const StepTime& most : kStepTimes) options.steps.push_back(most.seconds);
  return options;
}

Json result_json(const MaxSequence& result) {
  Json object = {{"strategy", result.strategy},
                 {"sequence_tokens", result.sequence},
                 {"granularity_tokens", result.granularity},
                 {"granule_tokens", result.granularity},
                 {"limited_by", name_of(result.limit)},
                 {"shortfall_bytes", result.shortfall_bytes},
                 {"remedy", result.remedy},
                 {"would_lift", result.remedy},
                 {"gap", result.gap ? Json(*result.gap) : Json()},
                 {"comparison", result.comparison},
                 {"beside", result.comparison}};
  if (result.sequence > 0) {
    object["chunk_tokens"] = result.plan.strategy.chunk_tokens;
    object["predicted"] = forecast_json(result.plan.hardware, result.plan.predicted);
    object["knobs"] = strategy_json(result.plan.strategy);
  }
  Json within = Json::array();
  for (const Within& longest : result.within) {
    Json entry = {{"most_step_seconds", longest.step_seconds},
                  {"sequence_tokens", longest.sequence}};
    if (longest.sequence > 0) {
      entry["predicted"] = forecast_json(longest.plan.hardware, longest.plan.predicted);
      entry["knobs"] = strategy_json(longest.plan.strategy);
    }
    within.push_back(std::move(entry));
  }
  object["longest_within"] = std::move(within);
  return object;
}

void add_row(Table& table, const MaxSequence& result, bool many) {
  const bool any = result.sequence > 0;
  const Prediction& p = result.plan.predicted;
  const auto or_dash = [&](const std::string& text) { return any ? text : "-"; };
  std::vector<std::string> row = {result.strategy, any ? format_tokens(result.sequence) : "none"};
  for (const Within& within : result.within) {
    row.push_back(within.sequence > 0 ? format_tokens(within.sequence) : "-");
  }
  row.push_back(or_dash(format_tokens(result.plan.strategy.chunk_tokens)));
  for (int tier = 0; tier < kTierCount; ++tier) row.push_back(bytes_or_dash(p.peak_bytes[tier]));
  row.push_back(or_dash(format_seconds(p.step_seconds)));
  row.push_back(or_dash(percent(p.mfu)));
  if (many) row.push_back(or_dash(degrees_of(result.plan.strategy.parallel)));
  row.emplace_back(name_of(result.limit));
  table.add(std::move(row));
}

// "no plan of the search space exceeds this length by more than 3.0 %". A bound of more than twice
// the length says nothing of the plans.
std::string length_gap_text(const char* plans, const char* length, double gap) {
  constexpr double kMeans = 1, kShown = 0.0005;
  if (gap > kMeans) return fmt::format("how much longer a {} can be is not known", plans);
  if (gap < kShown) return fmt::format("no {} exceeds {}", plans, length);
  return fmt::format("no {} exceeds {} by more than {}", plans, length, percent(gap));
}

// Prints upper bounds on how much longer a plan can be: for the preset that is furthest from its
// bound, and for auto.
void print_gaps(const std::vector<MaxSequence>& rows) {
  const MaxSequence* widest = nullptr;
  const MaxSequence* free = nullptr;
  for (const MaxSequence& row : rows) {
    if (!row.gap) continue;
    if (row.strategy == "auto") {
      free = &row;
    } else if (widest == nullptr || *row.gap > *widest->gap) {
      widest = &row;
    }
  }
  if (widest != nullptr && rows.size() == 1) {
    say("  {}: {}\n", widest->strategy,
        length_gap_text("plan of the preset", "this length", *widest->gap));
  } else if (widest != nullptr) {
    say("  presets: {} ({}; less for the others)\n",
        length_gap_text("plan of a preset", "the length shown", *widest->gap), widest->strategy);
  }
  if (free != nullptr) {
    say("  auto: {}\n", length_gap_text("plan of the search space", "this length", *free->gap));
  }
}

void print_text(const ModelSpec& model, const HardwareProfile& hw,
                const std::vector<MaxSequence>& rows) {
  const auto capacity = capacities(hw);
  const bool many = hw.devices() > 1;
  say("{}\n",
      bold(fmt::format("Longest sequence of {} on {}: {}device {}, host {}, nvme {}", model.name,
                       hw.name, many ? "each rank with " : "", format_bytes(capacity[0]),
                       format_bytes(capacity[1]), bytes_or_dash(capacity[2]))));
  std::vector<Table::Column> columns = {{"strategy", false}, {"length"}};
  for (const StepTime& most : kStepTimes) columns.push_back({most.name, true, 1});
  columns.insert(columns.end(), {{"chunk", true, 7},
                                 {"device", true, 3},
                                 {"host", true, 6},
                                 {"nvme", true, 8},
                                 {"step"},
                                 {"MFU", true, 5}});
  if (many) columns.push_back({"ranks", false, 4});
  columns.push_back({"limited by", false});
  Table table(columns);
  std::string extended;
  for (const MaxSequence& row : rows) {
    add_row(table, row, many);
    if (row.sequence > 0) extended = extended_positions_text(model, row.plan);
  }
  table.print();
  const PredictionInterval& interval = step_interval(hw);
  say("  90 % interval of a step: {:.2f} to {:.2f} times the prediction\n", interval.low,
      interval.high);
  if (!extended.empty()) say("  {}\n", extended);
  if (const std::string text = only_planned_text(model); !text.empty()) say("  {}\n", text);
  print_gaps(rows);
  for (const MaxSequence& row : rows) {
    const std::string reason = row.sequence > 0 ? why_not_run(row.plan) : "";
    if (!reason.empty()) say("  {}: {}\n", row.strategy, reason);
  }
  for (const auto& [key, text] : caveats_of(hw)) say("  {}: {}\n", key, text);
  for (const MaxSequence& row : rows) {
    if (!row.comparison.empty()) say("  {}: {}\n", row.strategy, row.comparison);
  }
  bool headed = false;
  for (const MaxSequence& result : rows) {
    std::string line = result.remedy;
    if (result.shortfall_bytes > 0) {
      line =
          fmt::format("with {} more, memory is short by {}{}{}", count_tokens(result.granularity),
                      format_bytes(result.shortfall_bytes), line.empty() ? "" : "; ", line);
    }
    if (line.empty()) continue;
    if (!std::exchange(headed, true)) say("{}\n", bold("What would help"));
    say("  {}: {}\n", result.strategy, line);
  }
}

int run(const MaxSeqFlags& flags, bool json) {
  const MaxSequenceOptions options = options_of(flags);
  check_output(flags.output, "-o");
  const ModelSpec model = flags.training.apply(flags.question.packed(load_model(flags.model)));
  const HardwareProfile hw = flags.hardware.load();
  if (flags.framework.given()) {
    if (const char* given = flags.training.given()) {
      throw bad_input("{}: about plans of Longspan's engine; leave it out with --on", given);
    }
    for (const auto& [flag, given] : {std::pair("--products", flags.question.products != "dtype"),
                                      {"--documents", !flags.question.documents.empty()},
                                      {"--micro-batch", flags.question.micro_batch > 1}}) {
      if (given) throw bad_input("{}: of Longspan's engine; leave it out with --on", flag);
    }
    if (!flags.output.empty() || flags.strategy != "all") {
      throw bad_input("--{}: a plan of Longspan's engine; leave it out with --on",
                      flags.output.empty() ? "strategy" : "output");
    }
    return max_seq_on(flags.framework, model, hw, options, json);
  }
  refuse_unplanned(model);
  std::vector<std::string> strategies;
  const ParallelChoice& parallel = options.parallel;
  const bool by_presets =
      parallel.admits_flat() && parallel.admits_whole_sequences() && model.works_on_all_tokens();
  if (flags.strategy == "all" && !by_presets) {
    strategies = {"auto"};  // presets have no pipeline, no slices and no shares of the tokens
  } else if (flags.strategy != "all") {
    strategies = {flags.strategy};
  } else {
    // On one device, presets that differ from `checkpoint` only by a mesh equal it.
    for (const std::string& name : preset_names()) {
      if (hw.devices() > 1 || !is_mesh_preset(name)) strategies.push_back(name);
    }
    strategies.emplace_back("auto");
  }

  std::vector<MaxSequence> results;
  {
    ProgressBar bar;
    const auto parts = static_cast<double>(strategies.size());
    for (const std::string& strategy : strategies) {
      const auto before = static_cast<double>(results.size());
      bar.show(strategy, before / parts);
      results.push_back(
          max_sequence(model, hw, strategy, options, [&](int64_t done, int64_t total) {
            const double share = total > 0 ? static_cast<double>(done) / total : 0;
            bar.show(strategy, (before + share) / parts);
          }));
    }
  }

  bool any = false;
  for (const MaxSequence& row : results) any |= row.sequence > 0;
  // auto is the last of all strategies.
  const Plan& best = results.back().plan;
  const bool written = !flags.output.empty() && best.sequence > 0;
  if (written) write_file_atomically(flags.output, write_plan(best));

  if (json) {
    Json list = Json::array();
    for (const MaxSequence& row : results) list.push_back(result_json(row));
    print_json({{"model", model.name},
                {"hardware", hw.name},
                {"capacity", tiers_json(capacities(hw))},
                {"micro_batch", model.micro_batch},
                {"microbatches", options.microbatches},
                {"micro_batches", options.microbatches},
                {"devices", hw.devices()},
                {"file", written ? Json(flags.output) : Json()},
                {"results", std::move(list)}});
  } else {
    print_text(model, hw, results);
    if (flags.strategy == "all" && hw.device.backend != "cpu") {
      const std::string others = common_frameworks_text(model, hw, options.granularity);
      if (!others.empty()) say("Other software (--on all): {}\n", others);
    }
    if (written) say("Wrote {}\n", flags.output);
    if (!any) say("Nothing fits, not even {}.\n", count_tokens(options.granularity));
  }
  return any ? 0 : 1;
}

}  // namespace

void add_max_seq(Verb& program) {
  auto flags = std::make_shared<MaxSeqFlags>();
  Verb verb =
      program.add_verb("max-seq", "How long a sequence fits, for each strategy",
                       "longspan max-seq --model llama-3.1-8b --hw h100-80g --strategy fpdt");
  verb.add_option("--model", flags->model,
                  "Model: a catalog name, a YAML file, or a Hugging Face config.json or folder")
      .required();
  flags->training.add_to(verb);
  flags->hardware.add_to(verb);
  verb.add_option("--strategy", flags->strategy,
                  "A preset, auto (the whole space of knobs), or all");
  verb.add_option("--granularity,--granule", flags->granularity,
                  "Granularity of the length for unchunked strategies, in tokens");
  flags->question.add_to(verb, "Attention chunk of chunked strategies; else the best");
  verb.add_option("-o,--output", flags->output,
                  "File for the plan of the longest sequence: of auto, or of the one --strategy");
  flags->framework.add_to(verb);
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
