// longspan plan: the best plan for a length, or one preset's, as a file.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/file.h"
#include "base/quantities.h"
#include "base/units.h"
#include "cli/document_lengths.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/on_framework.h"
#include "cli/optimal_schedule.h"
#include "cli/pipeline_text.h"
#include "cli/plan_text.h"
#include "cli/question_flags.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/training_flags.h"
#include "models/catalog.h"
#include "planner/evaluate/evaluate.h"
#include "planner/explain/alternative.h"
#include "planner/explain/analysis.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/search/ordered_plan.h"
#include "planner/search/sweep.h"
#include "planner/strategy/presets.h"

namespace longspan::cli {
namespace {

struct PlanFlags {
  std::string model;
  HardwareFlags hardware;
  QuestionFlags question;
  TrainingFlags training;
  std::string sequences;
  int64_t max_gpus = 0;  // 0: not given
  std::string min_gpus_for;
  std::string strategy = "auto";
  std::string objective = "throughput";
  std::string gap;                    // empty: not given
  std::optional<int64_t> time_limit;  // seconds
  std::string output;
  FrameworkFlags framework;
  bool verbose = false;
};

void check_together(const PlanFlags& flags) {
  const bool fewest = !flags.min_gpus_for.empty();
  if (fewest && !flags.sequences.empty()) {
    throw bad_input("--min-gpus-for: {} is the length already; leave --seq out",
                    flags.min_gpus_for);
  }
  if (!fewest && flags.sequences.empty()) {
    throw bad_input(
        "--seq: missing; expected a length (128K), several (64K,128K), or --min-gpus-for");
  }
  if (flags.strategy != "auto" && flags.objective != "throughput") {
    throw bad_input("--objective: chooses among the plans of auto; leave --strategy {} out",
                    flags.strategy);
  }
  if (flags.hardware.gpus > 0 && (fewest || flags.max_gpus > 0)) {
    throw bad_input("{}: --gpus {} fixes the number of devices; leave one of them out",
                    fewest ? "--min-gpus-for" : "--max-gpus", flags.hardware.gpus);
  }
}

SweepOptions options_of(const PlanFlags& flags) {
  SweepOptions options;
  options.strategy = flags.strategy;
  options.search.objective = flags.objective == "memory"        ? Objective::memory
                             : flags.objective == "host-memory" ? Objective::host_memory
                                                                : Objective::throughput;
  flags.question.load(options.search);
  if (!flags.gap.empty()) {
    if (options.search.objective != Objective::throughput || flags.strategy != "auto") {
      throw bad_input("--gap: ends a search for the fastest plan; leave --{} out",
                      flags.strategy != "auto" ? "strategy" : "objective");
    }
    options.search.gap = parse_share(flags.gap, "--gap");
  }
  return options;
}

// Checks a chunk that the user chose: the strategy's own check names the nearest chunks that
// divide.
void check_chunk(const PlanFlags& flags, const ModelSpec& model, int64_t chunk, int64_t sequence) {
  if (chunk == 0) return;
  Strategy probe;
  probe.chunk_tokens = probe.block_tokens = chunk;
  const int64_t tokens = sequence * model.micro_batch;
  validate(probe, model, tokens, "--chunk");
  if (flags.strategy == "auto" || is_chunked_preset(flags.strategy)) return;
  make_preset(flags.strategy, model, tokens);  // the message for an unknown name takes precedence
  throw bad_input("--chunk: strategy {} does not chunk attention; leave --chunk out",
                  flags.strategy);
}

// `with_front`: search the Pareto front of every question.
Sweep find_plans(const PlanFlags& flags, const ModelSpec& model, const HardwareProfile& hw,
                 bool with_front) {
  const bool fewest = !flags.min_gpus_for.empty();
  const std::vector<int64_t> sequences =
      fewest ? std::vector<int64_t>{parse_tokens(flags.min_gpus_for, "--min-gpus-for")}
             : parse_lengths(flags.sequences, "--seq");
  SweepOptions options = options_of(flags);
  options.front_of_each = with_front;
  for (const int64_t sequence : sequences) {
    check_chunk(flags, model, options.search.chunk_tokens, sequence);
  }
  ProgressBar bar;
  const auto progress = [&](int64_t done, int64_t total) {
    bar.show("searching", total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0);
  };
  const int64_t most = flags.max_gpus > 0 ? flags.max_gpus : hw.devices();
  if (fewest) {
    return fewest_devices(model, hw, sequences[0], device_counts(hw, most), options, progress);
  }
  const std::vector<int64_t> devices =
      flags.max_gpus > 0 ? doubling(device_counts(hw, most)) : std::vector<int64_t>{most};
  return sweep(model, hw, sequences, devices, options, progress);
}

bool asks_solver(const PlanFlags& flags) {
  return flags.question.parallel.choice.schedule == "optpipe";
}

// Searches one plan whose pipeline's order a solver finds.
OrderedPlan find_order(const PlanFlags& flags, const ModelSpec& model, const HardwareProfile& hw) {
  const std::vector<int64_t> sequences =
      flags.sequences.empty() ? std::vector<int64_t>{} : parse_lengths(flags.sequences, "--seq");
  if (sequences.size() != 1 || flags.max_gpus > 0) {
    throw bad_input(
        "--schedule optpipe: a solver orders one plan; give one length, and no --max-gpus or "
        "--min-gpus-for");
  }
  SweepOptions options = options_of(flags);
  if (flags.strategy != "auto" || options.search.objective != Objective::throughput) {
    throw bad_input("--schedule optpipe: for the fastest plan; leave --{} out",
                    flags.strategy != "auto" ? "strategy" : "objective");
  }
  check_chunk(flags, model, options.search.chunk_tokens, sequences[0]);
  options.search.parallel.schedule.reset();
  SolverLimits limits;
  if (flags.time_limit) limits.seconds = static_cast<double>(*flags.time_limit);
  return with_time_shown(
      "ordering", [&] { return search_order(model, hw, sequences[0], options.search, limits); });
}

// How much the solver gained, and how near the best order it is.
std::string order_text(const OrderedPlan& found) {
  const double share = 1 - found.plan.predicted.step_seconds / found.start_seconds;
  const std::string gain =
      share > 0 ? fmt::format("{} less time than {}", percent(share), found.order.start)
                : fmt::format("as fast as {}", found.order.start);
  return fmt::format("{}; {}", gain, end_text(found.order));
}

double rate_per_device(const Plan& plan) {
  return plan.predicted.tokens_per_second / static_cast<double>(plan.hardware.devices());
}

// `counts`: whether plans on different numbers of devices are compared.
std::vector<Table::Column> plan_columns(bool counts) {
  return {{"length"},
          {"GPUs", true, counts ? 0 : 4},
          {"step/sequence"},
          {"tokens/s", true, 5},
          {"tokens/s/GPU", true, 8},
          {"MFU", true, 6},
          {"device"},
          {"host", true, 3},
          {"nvme", true, 7},
          {"chunk", true, 9},
          {"ranks", false},
          {"why", false}};
}

std::vector<std::string> plan_row(const Plan& plan, const std::string& why) {
  const Prediction& p = plan.predicted;
  return {format_tokens(plan.sequence),
          fmt::format("{}", plan.hardware.devices()),
          format_seconds(seconds_per_sequence(plan)),
          format_rate(p.tokens_per_second, ""),
          format_rate(rate_per_device(plan), ""),
          percent(p.mfu),
          bytes_or_dash(p.peak_bytes[0]),
          bytes_or_dash(p.peak_bytes[1]),
          bytes_or_dash(p.peak_bytes[2]),
          format_tokens(plan.strategy.chunk_tokens),
          plan.strategy.parallel.ranks() > 1 ? degrees_of(plan.strategy.parallel) : "1",
          why};
}

// `whole`: with the fronts of all questions, else only their best plans.
void print_front(const Sweep& found, bool whole) {
  say("{}\n", bold(whole ? "Pareto front of tokens/s, length, GPUs, host and device memory"
                         : "Best plans by tokens/s, length and number of GPUs"));
  const bool counts =
      std::any_of(found.front.begin(), found.front.end(), [&](const FrontPoint& point) {
        return point.plan.hardware.devices() != found.front.front().plan.hardware.devices();
      });
  Table table(plan_columns(counts));
  for (const FrontPoint& point : found.front) table.add(plan_row(point.plan, point.because));
  table.print();
}

// Prints the last refusals: those with the most devices, which came closest to fitting.
void print_refusals(const Sweep& found) {
  constexpr size_t kLines = 6;
  std::vector<const Answer*> refused;
  for (const Answer& answer : found.answers) {
    if (!answer.plan) refused.push_back(&answer);
  }
  const size_t hidden = refused.size() - std::min(refused.size(), kLines);
  if (hidden > 0)
    say("  {} refused; --json has all\n",
        counted(static_cast<int64_t>(hidden), "question more is", "questions more are"));
  for (size_t i = hidden; i < refused.size(); ++i) {
    say("  {} on {}: {}\n", format_tokens(refused[i]->sequence), refused[i]->devices,
        refused[i]->refusal);
  }
}

Json front_json(const Sweep& found) {
  Json front = Json::array();
  for (const FrontPoint& point : found.front) {
    front.push_back({{"sequence_tokens", point.plan.sequence},
                     {"devices", point.plan.hardware.devices()},
                     {"because", point.because},
                     {"predicted", forecast_json(point.plan.hardware, point.plan.predicted)},
                     {"tokens_per_second_per_device", rate_per_device(point.plan)},
                     {"strategy", strategy_json(point.plan.strategy)}});
  }
  return front;
}

Json answers_json(const Sweep& found) {
  Json answers = Json::array();
  for (const Answer& answer : found.answers) {
    Json entry = {{"sequence_tokens", answer.sequence}, {"devices", answer.devices}};
    if (answer.plan) {
      entry["predicted"] = forecast_json(answer.plan->hardware, answer.plan->predicted);
      entry["tokens_per_second_per_device"] = rate_per_device(*answer.plan);
    } else {
      entry["refusal"] = answer.refusal;
    }
    answers.push_back(std::move(entry));
  }
  return answers;
}

// How much better any plan of the space can be.
std::string gap_text(const PlanFlags& flags, double gap) {
  if (gap >= 1) return "unknown: no bound was found";
  const char* better = flags.objective == "memory"        ? "{} less device memory"
                       : flags.objective == "host-memory" ? "{} less host memory"
                                                          : "{} less time";
  return "no plan of the search space takes more than " +
         fmt::format(fmt::runtime(better), percent(gap));
}

// The number of sequences per step and per data replica; empty if that needs no remark.
std::string batch_text(const PlanFlags& flags, const Plan& plan) {
  const int64_t replicas = plan.strategy.parallel.data;
  const int64_t each = plan.microbatches * plan.model.micro_batch;
  if (replicas == 1 || flags.question.global_batch > 0) return "";
  return fmt::format(
      "{} sequences a step: {} on each of {} data replicas; --global-batch fixes that",
      each * replicas, each, replicas);
}

// Prints how good the plan is, and which parts of the question were extended or changed.
void print_remarks(const PlanFlags& flags, const ModelSpec& model, const Plan& plan,
                   const Answer* answer) {
  const auto print = [](std::string_view key, const std::string& text) {
    if (!text.empty()) print_line(key, text);
  };
  if (answer != nullptr && flags.strategy == "auto") print("gap", gap_text(flags, answer->gap));
  print("batch", batch_text(flags, plan));
  if (answer != nullptr && answer->sequence != plan.sequence) {
    print_line("length",
               fmt::format("{} tokens are padded to {}, which suits the plan's chunks and ranks",
                           answer->sequence, plan.sequence));
  }
  if (!plan.model.documents.empty()) {
    print("documents", documents_text(plan.model.documents) + "; pairs are expected ones");
  }
  print("positions", extended_positions_text(model, plan));
  print("trained", trained_text(model));
  print("model", only_planned_text(model));
  print("not run", why_not_run(plan));
}

// What limits the step time: with and without a pipeline if both were searched, else what compute
// waits for.
std::string limit_text(const Plan& plan, const std::string& why_chosen) {
  if (!why_chosen.empty()) return why_chosen;
  const bool listable = !is_priced_by_kinds(step_request(plan)) && is_listable(plan);
  return listable ? limit_of(simulate_plan(plan)) : "";
}

void print_verbose(const Sweep& found, const std::string& why_chosen) {
  print_knobs(found.best);
  print_prediction(found.best, found.best.predicted);
  if (is_priced_by_kinds(step_request(found.best))) {
    print_pipeline(found.best, pipeline_step(found.best));
  }
  if (!why_chosen.empty()) {
    say("{}\n  {}\n", bold("With and without a pipeline"), why_chosen);
  }
}

void print_text(const PlanFlags& flags, const ModelSpec& model, const Sweep& found,
                const std::string& why_chosen) {
  const Plan& best = found.best;
  say("{}\n", bold(headline(best)));
  print_summary(best, best.predicted);
  if (const std::string limit = limit_text(best, why_chosen); !limit.empty()) {
    print_line("why", limit);
  }
  print_remarks(flags, model, best, answer_of_best(found));
  print_caveats(best.hardware);
  if (flags.verbose) print_verbose(found, why_chosen);
  const std::string why = why_so_many(found);
  if (!why.empty()) say("{}\n  {}\n", bold("Why this number of devices"), why);
  if (flags.verbose ? !found.front.empty() : found.front.size() > 1) {
    print_front(found, flags.verbose);
  }
  print_refusals(found);
  if (found.evaluated > 0 && flags.verbose) {
    say("{} configurations considered, {} of them simulated, in {}\n", grouped(found.considered),
        grouped(found.evaluated), format_seconds(found.seconds));
  }
  if (!flags.output.empty()) say("Wrote {}\n", flags.output);
  if (!flags.verbose) {
    const bool has_front = flags.strategy == "auto" || !found.front.empty();
    say("--verbose shows all knobs{}{}\n", has_front ? " and the Pareto front" : "",
        flags.output.empty() ? "; -o FILE writes the plan" : "");
  }
}

int run(const PlanFlags& flags, bool json) {
  check_together(flags);
  check_output(flags.output, "-o");
  const ModelSpec model = flags.training.apply(flags.question.packed(load_model(flags.model)));
  const HardwareProfile hw = flags.hardware.load();
  if (flags.framework.given()) {
    for (const auto& [flag, given] :
         {std::pair("output", !flags.output.empty()),
          {"strategy", flags.strategy != "auto"},
          {"objective", flags.objective != "throughput"},
          {"gap", !flags.gap.empty()},
          {"max-step-time", !flags.question.max_step_time.empty()},
          {"min-tokens-per-second", !flags.question.min_tokens_per_second.empty()},
          {"microbatches", flags.question.microbatches > 0},
          {"global-batch", flags.question.global_batch > 0},
          {"chunk", !flags.question.chunk.empty()},
          {"documents", !flags.question.documents.empty()},
          {"micro-batch", flags.question.micro_batch > 1},
          {"moments", flags.question.moments != "float32"},
          {"expert-capacity", flags.question.parallel.expert_capacity != "worst"},
          {"expert-imbalance", flags.question.parallel.expert_imbalance != "1"},
          {"early-update", flags.question.early_update},
          {"optimizer", !flags.question.optimizer.empty()},
          {"masters", flags.question.masters != "float32"},
          {"products", flags.question.products != "dtype"},
          {"freeze", !flags.training.freeze.empty()},
          {"lora", flags.training.lora_rank > 0},
          {"nf4", flags.training.nf4},
          {"auxiliary-loss", flags.training.auxiliary_loss.has_value()},
          {"forward-only", flags.question.forward_only},
          {"max-gpus", flags.max_gpus > 0},
          {"min-gpus-for", !flags.min_gpus_for.empty()}}) {
      if (given) {
        throw bad_input("--{}: about plans of Longspan's engine; leave it out with --on", flag);
      }
    }
    return plan_on(flags.framework, model, hw, parse_lengths(flags.sequences, "--seq"), json);
  }
  refuse_unplanned(model);
  if (flags.time_limit && !asks_solver(flags)) {
    throw bad_input("--time-limit: of the solver of --schedule optpipe; leave it out");
  }
  std::optional<OrderedPlan> ordered;
  Sweep found;
  if (asks_solver(flags)) {
    ordered = find_order(flags, model, hw);
    found.best = ordered->plan;
  } else {
    found = find_plans(flags, model, hw, json || flags.verbose);
  }
  const Answer* answer = answer_of_best(found);
  const Plan* alternative =
      answer != nullptr && answer->alternative ? &*answer->alternative : nullptr;
  std::string why = answer != nullptr ? answer->no_alternative_reason : "";
  if (alternative != nullptr) why = why_chosen(found.best, *alternative);
  if (alternative != nullptr && !flags.gap.empty()) {
    why += ". --gap ended the search of both early";
  }
  if (ordered) why = order_text(*ordered);
  if (!flags.output.empty()) {
    Plan written = found.best;
    written.created_by = version_text() + " plan";
    write_file_atomically(flags.output, write_plan(written));
  }

  if (json) {
    Json document = plan_summary_json(found.best);
    document["asked_tokens"] = answer != nullptr ? answer->sequence : found.best.sequence;
    document["documents"] = documents_json(found.best.model.documents);
    document["sequences_per_step"] = sequences_of_step(found.best);
    document["gap"] = answer != nullptr && answer->gap < 1 ? Json(answer->gap) : Json();
    const std::string not_run = why_not_run(found.best);
    document["not_run"] = not_run.empty() ? Json() : Json(not_run);
    document["positions_extended"] = found.best.model.max_positions != model.max_positions;
    document["devices"] = found.best.hardware.devices();
    document["predicted"] = forecast_json(found.best.hardware, found.best.predicted);
    document["capacity"] = tiers_json(capacities(found.best.hardware));
    if (is_priced_by_kinds(step_request(found.best))) {
      document["pipeline"] = pipeline_json(pipeline_step(found.best));
    }
    document["pareto"] = front_json(found);
    document["answers"] = answers_json(found);
    if (alternative != nullptr) {
      const Json shown = {
          {"strategy", strategy_json(alternative->strategy)},
          {"predicted", forecast_json(alternative->hardware, alternative->predicted)}};
      document["alternative"] = shown;
      document["rival"] = shown;
    }
    document["with_and_without_a_pipeline"] = why;
    document["why_so_many_devices"] = why_so_many(found);
    document["considered"] = found.considered;
    document["evaluated"] = found.evaluated;
    document["search_seconds"] = found.seconds;
    document["file"] = flags.output.empty() ? Json() : Json(flags.output);
    print_json(document);
  } else {
    print_text(flags, model, found, why);
  }
  return 0;
}

}  // namespace

void add_plan(Verb& program) {
  auto flags = std::make_shared<PlanFlags>();
  Verb verb =
      program.add_verb("plan", "The best plan for a length, or one strategy's",
                       "longspan plan --model llama-3.1-8b --hw h100-80g --seq 128K -o plan.yaml");
  verb.add_option("--model", flags->model,
                  "Model: a catalog name, a YAML file, or a Hugging Face config.json or folder")
      .required();
  flags->training.add_to(verb);
  flags->hardware.add_to(verb);
  verb.add_option("--seq", flags->sequences,
                  "Sequence length, e.g. 128K; or several to compare, e.g. 64K,128K,256K");
  verb.add_option("--max-gpus", flags->max_gpus,
                  "Upper limit on devices: plans for the best number, and compares others")
      .within(1, kMostRanks)
      .shown_default("");
  verb.add_option("--min-gpus-for", flags->min_gpus_for,
                  "A length: the fewest devices that train it, and the best plan on them");
  verb.add_option("--strategy", flags->strategy, "A preset, or auto (search)");
  flags->question.add_to(verb, "Attention chunk; must divide the length");
  verb.add_option("--objective", flags->objective, "What auto looks for")
      .one_of({"throughput", "memory", "host-memory"});
  verb.add_option("--gap", flags->gap,
                  "End the search with a plan known to be this near the fastest, e.g. 10%");
  verb.add_option("--time-limit", flags->time_limit, "Most seconds of --schedule optpipe's solver")
      .within(1, 86400)
      .shown_default("60");
  verb.add_option("-o,--output", flags->output, "Where the plan is written");
  verb.add_flag("--verbose", flags->verbose, "Show all knobs and the Pareto front");
  flags->framework.add_to(verb);
  verb.add_option("--export", flags->framework.folder,
                  "With --on: a folder for the config with these settings");
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
