// longspan max-seq: how long a sequence fits, for each strategy, what stops it, what would lift
// that.
#include <fmt/format.h>

#include <memory>

#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/plan_text.h"
#include "cli/question_flags.h"
#include "cli/terminal.h"
#include "models/catalog.h"
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
  std::string output;
};

MaxSequenceOptions options_of(const Flags& flags) {
  MaxSequenceOptions options;
  options.granule = parse_tokens(flags.granule, "--granule");
  flags.question.load(options);
  return options;
}

Json result_json(const MaxSequence& result) {
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
  return object;
}

void add_row(Table& table, const MaxSequence& result, bool many) {
  std::vector<std::string> row = {result.strategy};
  if (result.sequence == 0) {
    row.insert(row.end(), {"none", "-", "-", "-", "-", "-", "-", "-"});
    if (many) row.emplace_back("-");
  } else {
    const Prediction& p = result.plan.predicted;
    row.insert(row.end(),
               {format_tokens(result.sequence), format_tokens(result.plan.strategy.chunk_tokens),
                bytes_or_dash(p.peak_bytes[0]), bytes_or_dash(p.peak_bytes[1]),
                bytes_or_dash(p.peak_bytes[2]), format_seconds(p.step_seconds),
                step_range_text(result.plan.hardware, p.step_seconds), percent(p.mfu)});
    if (many) row.push_back(degrees_of(result.plan.strategy.parallel));
  }
  row.emplace_back(name_of(result.limit));
  table.add(std::move(row));
}

void print_text(const ModelSpec& model, const HardwareProfile& hw,
                const std::vector<MaxSequence>& results) {
  const auto capacity = capacities(hw);
  const bool many = hw.devices() > 1;
  fmt::print("{}\n", bold(fmt::format("Longest sequence of {} on {}: {}device {}, host {}, nvme {}",
                                      model.name, hw.name, many ? "each rank with " : "",
                                      format_bytes(capacity[0]), format_bytes(capacity[1]),
                                      bytes_or_dash(capacity[2]))));
  std::vector<Table::Column> columns = {
      {"strategy", false}, {"length"}, {"chunk"}, {"device"}, {"host"}, {"nvme"}, {"step"},
      {"nine of ten"},     {"MFU"}};
  if (many) columns.push_back({"ranks", false});
  columns.push_back({"limited by", false});
  Table table(columns);
  for (const MaxSequence& result : results) add_row(table, result, many);
  table.print();
  for (const MaxSequence& result : results) {
    if (!result.beside.empty()) fmt::print("  {}: {}\n", result.strategy, result.beside);
  }
  fmt::print("{}\n", bold("What would lift the limit"));
  for (const MaxSequence& result : results) {
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
  for (const MaxSequence& result : results) any |= result.sequence > 0;
  if (json) {
    Json list = Json::array();
    for (const MaxSequence& result : results) list.push_back(result_json(result));
    print_json({{"model", model.name},
                {"hardware", hw.name},
                {"capacity", tiers_json(capacities(hw))},
                {"micro_batches", options.micro_batches},
                {"devices", hw.devices()},
                {"results", std::move(list)}});
  } else {
    print_text(model, hw, results);
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
  verb.add_option("-o,--output", flags->output,
                  "Where the plan of the longest is written: auto's, or the one strategy's");
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
