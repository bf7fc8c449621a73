// longspan plan: the best plan for a length, or one preset's, as a file.
#include <fmt/format.h>

#include <memory>

#include "base/file.h"
#include "base/units.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/plan_text.h"
#include "cli/terminal.h"
#include "models/catalog.h"
#include "planner/search/search.h"

namespace longspan::cli {
namespace {

struct Flags {
  std::string model;
  HardwareFlags hardware;
  ParallelFlags parallel;
  std::string sequence;
  std::string strategy = "auto";
  std::string chunk;
  std::string objective = "throughput";
  int64_t micro_batches = 1;
  std::string output;
};

SearchResult find_plan(const Flags& flags, const ModelSpec& model, const HardwareProfile& hw) {
  const int64_t sequence = parse_tokens(flags.sequence, "--seq");
  const int64_t chunk = flags.chunk.empty() ? 0 : parse_tokens(flags.chunk, "--chunk");
  if (flags.micro_batches < 1) {
    throw bad_input("--micro-batches: expected a number >= 1, got {}", flags.micro_batches);
  }
  SearchOptions options;
  options.objective = flags.objective == "memory" ? Objective::memory : Objective::throughput;
  options.chunk_tokens = chunk;
  options.micro_batches = flags.micro_batches;
  options.parallel = flags.parallel.load();
  if (chunk > 0) {
    // The strategy's own check, for a chunk the user chose: it names the nearest that divide.
    Strategy probe;
    probe.chunk_tokens = probe.block_tokens = chunk;
    validate(probe, model, sequence, "--chunk");
  }
  if (flags.strategy != "auto") {
    if (chunk > 0 && !is_chunked_preset(flags.strategy)) {
      make_preset(flags.strategy, model, sequence);  // an unknown name is the better message
      throw bad_input("--chunk: strategy {} does not chunk attention; leave --chunk out",
                      flags.strategy);
    }
    SearchResult result;
    result.best = plan_preset(model, hw, flags.strategy, sequence, options);
    return result;
  }
  ProgressBar bar;
  return search(model, hw, sequence, options, [&](int64_t done, int64_t total) {
    bar.show("searching", total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0);
  });
}

// The search fills in what it ranks by, time and memory; rate and MFU follow from them.
Prediction complete(const Plan& plan) {
  return prediction_of(plan, plan.predicted.step_seconds, plan.predicted.peak_bytes);
}

void print_pareto(const SearchResult& found) {
  fmt::print("{}\n", bold("From the fastest to the smallest in device memory"));
  const bool many = found.best.strategy.parallel.ranks() > 1;
  std::vector<Table::Column> columns = {{many ? "step/sequence" : "step"},
                                        {"MFU"},
                                        {"device"},
                                        {"host"},
                                        {"nvme"},
                                        {"chunk"},
                                        {"block"},
                                        {"kv", false},
                                        {"optimizer", false},
                                        {"saved", false}};
  if (many) columns.push_back({"ranks", false});
  Table table(columns);
  for (const Plan& plan : found.pareto) {
    const Prediction p = complete(plan);
    const Strategy& s = plan.strategy;
    const auto replicas = static_cast<double>(s.parallel.data);
    std::vector<std::string> row = {format_seconds(p.step_seconds / replicas),
                                    percent(p.mfu),
                                    bytes_or_dash(p.peak_bytes[0]),
                                    bytes_or_dash(p.peak_bytes[1]),
                                    bytes_or_dash(p.peak_bytes[2]),
                                    format_tokens(s.chunk_tokens),
                                    format_tokens(s.block_tokens),
                                    std::string(name_of(s.kv)),
                                    std::string(name_of(s.optimizer)),
                                    saved_text(s)};
    if (many) row.push_back(degrees_of(s.parallel));
    table.add(std::move(row));
  }
  table.print();
}

void print_text(const Flags& flags, const SearchResult& found) {
  fmt::print("{}\n", bold(headline(found.best)));
  print_knobs(found.best);
  print_prediction(found.best, found.best.predicted);
  if (!found.pareto.empty()) print_pareto(found);
  if (found.evaluated > 0) {
    fmt::print("{} configurations considered, {} of them simulated, in {}\n", found.considered,
               found.evaluated, format_seconds(found.seconds));
  }
  if (flags.output.empty()) {
    fmt::print("The plan was not written; -o FILE writes it.\n");
  } else {
    fmt::print("Wrote {}\n", flags.output);
  }
}

int run(const Flags& flags, bool json) {
  check_folder_of(flags.output, "-o");
  const ModelSpec model = load_model(flags.model);
  const HardwareProfile hw = flags.hardware.load();
  SearchResult found = find_plan(flags, model, hw);
  found.best.created_by = version_text() + " plan";
  if (!flags.output.empty()) write_file_atomically(flags.output, write_plan(found.best));

  if (json) {
    Json front = Json::array();
    for (const Plan& plan : found.pareto) {
      front.push_back({{"predicted", prediction_json(complete(plan))},
                       {"strategy", strategy_json(plan.strategy)}});
    }
    Json document = plan_summary_json(found.best);
    document["predicted"] = prediction_json(found.best.predicted);
    document["capacity"] = tiers_json(capacities(hw));
    document["pareto"] = std::move(front);
    document["considered"] = found.considered;
    document["evaluated"] = found.evaluated;
    document["search_seconds"] = found.seconds;
    document["file"] = flags.output.empty() ? Json() : Json(flags.output);
    print_json(document);
  } else {
    print_text(flags, found);
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      add_verb(app, invocation, "plan", "The best plan for a length, or one strategy's",
               "longspan plan --model llama-3.1-8b --hw h100-80g --seq 128K -o plan.yaml");
  verb->add_option("--model", flags->model,
                   "Model: a catalog name, a YAML file, or a Hugging Face config.json or folder")
      ->required();
  flags->hardware.add_to(*verb);
  flags->parallel.add_to(*verb);
  verb->add_option("--seq", flags->sequence, "Sequence length, e.g. 128K")->required();
  verb->add_option("--strategy", flags->strategy, "A preset, or auto (search)");
  verb->add_option("--chunk", flags->chunk, "Attention chunk; must divide the length");
  verb->add_option("--micro-batches", flags->micro_batches, "Sequences per optimizer step");
  verb->add_option("--objective", flags->objective, "What auto looks for")
      ->check(CLI::IsMember({"throughput", "memory"}));
  verb->add_option("-o,--output", flags->output, "Where the plan is written");
  verb->callback([flags, &invocation] {
    invocation.action = [flags, &invocation] { return run(*flags, invocation.json); };
  });
}

}  // namespace longspan::cli
