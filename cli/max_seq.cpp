// longspan max-seq: how long a sequence fits, for each strategy, what stops it, what would lift
// that.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/file.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/plan_text.h"
#include "cli/question_flags.h"
#include "cli/terminal.h"
#include "models/catalog.h"
#include "planner/reference/range.h"
#include "planner/search/search.h"
#include "planner/strategy/presets.h"

namespace longspan::cli {
namespace {

struct Flags {
  std::string model;
  HardwareFlags hardware;
  QuestionFlags question;
  std::string strategy = "all";
  std::string granule = "256";
  bool step_times = false;
  std::string output;
};

// Steps that a length is asked for besides, and how a column names them.
struct StepTime {
  double seconds;
  const char* name;
};
constexpr StepTime kStepTimes[] = {{600, "<= 10 min"}, {3600, "<= 1 h"}};

// Of one strategy, with the longest within each of kStepTimes where that is asked for.
struct Row {
  MaxSequence longest;
  std::vector<MaxSequence> within;
};

Row find(const Flags& flags, const ModelSpec& model, const HardwareProfile& hw,
         const std::string& strategy, const MaxSequenceOptions& options, const Progress& progress) {
  Row row{max_sequence(model, hw, strategy, options, progress), {}};
  for (const StepTime& most : kStepTimes) {
    if (!flags.step_times) break;
    MaxSequenceOptions timed = options;
    timed.most_seconds = std::min(options.most_seconds, most.seconds);
    const bool in_time =
        row.longest.sequence == 0 || row.longest.plan.predicted.step_seconds <= timed.most_seconds;
    row.within.push_back(in_time ? row.longest
                                 : max_sequence(model, hw, strategy, timed, progress));
  }
  return row;
}

MaxSequenceOptions options_of(const Flags& flags) {
  MaxSequenceOptions options;
  options.granule = parse_tokens(flags.granule, "--granule");
  flags.question.load(options);
  return options;
}

Json result_json(const Row& row) {
  const MaxSequence& result = row.longest;
  Json object = {{"strategy", result.strategy},
                 {"sequence_tokens", result.sequence},
                 {"granule_tokens", result.granule},
                 {"limited_by", name_of(result.limit)},
                 {"shortfall_bytes", result.shortfall_bytes},
                 {"would_lift", result.would_lift},
                 {"beside", result.beside}};
  if (result.sequence > 0) {
    object["chunk_tokens"] = result.plan.strategy.chunk_tokens;
    object["predicted"] = forecast_json(result.plan.hardware, result.plan.predicted);
    object["knobs"] = strategy_json(result.plan.strategy);
  }
  Json within = Json::array();
  for (size_t i = 0; i < row.within.size(); ++i) {
    const MaxSequence& longest = row.within[i];
    Json entry = {{"most_step_seconds", kStepTimes[i].seconds},
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

void add_row(Table& table, const Row& line, bool many) {
  const MaxSequence& result = line.longest;
  const bool any = result.sequence > 0;
  const Prediction& p = result.plan.predicted;
  const auto or_dash = [&](const std::string& text) { return any ? text : "-"; };
  std::vector<std::string> row = {result.strategy, any ? format_tokens(result.sequence) : "none"};
  for (const MaxSequence& within : line.within) {
    row.push_back(within.sequence > 0 ? format_tokens(within.sequence) : "-");
  }
  row.push_back(or_dash(format_tokens(result.plan.strategy.chunk_tokens)));
  for (int tier = 0; tier < kTierCount; ++tier) row.push_back(bytes_or_dash(p.peak_bytes[tier]));
  row.push_back(or_dash(format_seconds(p.step_seconds)));
  if (line.within.empty()) {
    row.push_back(any ? step_range_text(result.plan.hardware, p.step_seconds) : "-");
  }
  row.push_back(or_dash(percent(p.mfu)));
  if (many) row.push_back(or_dash(degrees_of(result.plan.strategy.parallel)));
  row.emplace_back(name_of(result.limit));
  table.add(std::move(row));
}

void print_text(const ModelSpec& model, const HardwareProfile& hw, const Flags& flags,
                const std::vector<Row>& rows) {
  const auto capacity = capacities(hw);
  const bool many = hw.devices() > 1;
  fmt::print("{}\n", bold(fmt::format("Longest sequence of {} on {}: {}device {}, host {}, nvme {}",
                                      model.name, hw.name, many ? "each rank with " : "",
                                      format_bytes(capacity[0]), format_bytes(capacity[1]),
                                      bytes_or_dash(capacity[2]))));
  std::vector<Table::Column> columns = {{"strategy", false}, {"length"}};
  if (flags.step_times) {
    for (const StepTime& most : kStepTimes) columns.push_back({most.name});
  }
  columns.insert(columns.end(), {{"chunk"}, {"device"}, {"host"}, {"nvme"}, {"step"}});
  // The range is the same part of every step: in place of its column a line below says it.
  if (!flags.step_times) columns.push_back({"nine of ten"});
  columns.push_back({"MFU"});
  if (many) columns.push_back({"ranks", false});
  columns.push_back({"limited by", false});
  Table table(columns);
  bool slow = false;
  std::string extended;
  for (const Row& row : rows) {
    add_row(table, row, many);
    const MaxSequence& longest = row.longest;
    if (longest.sequence == 0) continue;
    slow |= longest.plan.predicted.step_seconds > kStepTimes[1].seconds;
    extended = extended_positions_text(model, longest.plan);
  }
  table.print();
  if (flags.step_times) {
    const Range& range = step_range(hw);
    fmt::print("  Nine of ten steps take {:.2f} to {:.2f} times as long as predicted.\n", range.low,
               range.high);
  } else if (slow) {
    fmt::print("  --step-times shows what is longest with a step of ten minutes and of an hour.\n");
  }
  if (!extended.empty()) fmt::print("  {}\n", extended);
  for (const Row& row : rows) {
    if (!row.longest.beside.empty()) {
      fmt::print("  {}: {}\n", row.longest.strategy, row.longest.beside);
    }
  }
  fmt::print("{}\n", bold("What would lift the limit"));
  for (const Row& row : rows) {
    const MaxSequence& result = row.longest;
    std::string line = result.would_lift;
    if (result.shortfall_bytes > 0) {
      line = fmt::format("{} tokens more lack {}{}{}", format_tokens(result.granule),
                         format_bytes(result.shortfall_bytes), line.empty() ? "" : "; ", line);
    }
    if (!line.empty()) fmt::print("  {}: {}\n", result.strategy, line);
  }
}

int run(const Flags& flags, bool json) {
  const MaxSequenceOptions options = options_of(flags);
  check_output(flags.output, "-o");
  const ModelSpec model = load_model(flags.model);
  const HardwareProfile hw = flags.hardware.load();
  std::vector<std::string> strategies;
  if (flags.strategy == "all" && (!options.parallel.admits_flat() || !model.uniform())) {
    strategies = {"auto"};  // presets have no pipeline, and one program
  } else if (flags.strategy != "all") {
    strategies = {flags.strategy};
  } else {
    // On one device, presets that are a grid are checkpoint by another name.
    for (const std::string& name : preset_names()) {
      if (hw.devices() > 1 || !is_grid_preset(name)) strategies.push_back(name);
    }
    strategies.emplace_back("auto");
  }

  std::vector<Row> results;
  {
    ProgressBar bar;
    const auto parts = static_cast<double>(strategies.size());
    for (const std::string& strategy : strategies) {
      const auto before = static_cast<double>(results.size());
      bar.show(strategy, before / parts);
      results.push_back(find(flags, model, hw, strategy, options, [&](int64_t done, int64_t total) {
        const double share = total > 0 ? static_cast<double>(done) / total : 0;
        bar.show(strategy, (before + share) / parts);
      }));
    }
  }

  bool any = false;
  for (const Row& row : results) any |= row.longest.sequence > 0;
  // auto is the last of all strategies.
  const Plan& best = results.back().longest.plan;
  const bool written = !flags.output.empty() && best.sequence > 0;
  if (written) write_file_atomically(flags.output, write_plan(best));

  if (json) {
    Json list = Json::array();
    for (const Row& row : results) list.push_back(result_json(row));
    print_json({{"model", model.name},
                {"hardware", hw.name},
                {"capacity", tiers_json(capacities(hw))},
                {"micro_batches", options.micro_batches},
                {"devices", hw.devices()},
                {"file", written ? Json(flags.output) : Json()},
                {"results", std::move(list)}});
  } else {
    print_text(model, hw, flags, results);
    if (written) fmt::print("Wrote {}\n", flags.output);
    if (!any) fmt::print("Nothing fits, not even {} tokens.\n", format_tokens(options.granule));
  }
  return any ? 0 : 1;
}

}  // namespace

void add_max_seq(Verb& program) {
  auto flags = std::make_shared<Flags>();
  Verb verb =
      program.add_verb("max-seq", "How long a sequence fits, for each strategy",
                       "longspan max-seq --model llama-3.1-8b --hw h100-80g --strategy fpdt");
  verb.add_option("--model", flags->model,
                  "Model: a catalog name, a YAML file, or a Hugging Face config.json or folder")
      .required();
  flags->hardware.add_to(verb);
  verb.add_option("--strategy", flags->strategy,
                  "A preset, auto (the whole space of knobs), or all");
  verb.add_option("--granule", flags->granule, "Step in which unchunked strategies grow");
  flags->question.add_to(verb, "Attention chunk of chunked strategies; else the best");
  verb.add_flag("--step-times", flags->step_times,
                "Show what is longest with a step of ten minutes and of an hour, too");
  verb.add_option("-o,--output", flags->output,
                  "Where the plan of the longest is written: auto's, or the one strategy's");
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
