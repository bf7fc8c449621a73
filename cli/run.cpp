// longspan run: trains by a plan and compares its measurements with the prediction.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/processors.h"
#include "base/units.h"
#include "cli/document_lengths.h"
#include "cli/documents.h"
#include "cli/inputs.h"
#include "cli/interrupt.h"
#include "cli/plan_text.h"
#include "cli/ranks.h"
#include "cli/run_record.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "engine/comm/agreement.h"
#include "engine/comm/collectives.h"
#include "engine/train/adapter_files.h"
#include "engine/train/machine_backend.h"
#include "engine/train/npy.h"
#include "engine/train/states.h"
#include "engine/train/trainer.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/program/layer_kinds.h"
#include "planner/simulate/trace.h"

namespace longspan::cli {
namespace {

// Each rank is a thread that holds its share of the plan's memory.
constexpr int64_t kMostLocalRanks = 1024;

struct RunFlags {
  std::string plan;
  TrainingConfig training;
  double min_learning_rate = -1;  // < 0: a tenth of the peak
  std::string data = "synthetic";
  std::string format = "auto";
  std::string documents;             // lengths, in their order
  std::optional<int64_t> separator;  // the last token of a document
  std::string weights;
  std::string adapters, save_adapters;  // folders
  std::string checkpoint;
  int64_t checkpoint_every = 0;
  std::string resume;
  int64_t stop_after = 0;
  int threads = 0;
  int64_t local_ranks = 0;
  std::string nvme_directory = ".";
  std::string trace;
  std::string output;
  bool forward_only = false;
  std::string log_probs;
};

// The memory that the run uses.
struct Taken {
  int64_t arena_bytes = 0;               // on device and host, of all ranks in this process
  std::optional<int64_t> device_in_use;  // set if it is one rank's device
};

struct Outcome {
  bool stopped_early = false;
  std::string checkpoint;     // the last one saved, or empty
  std::optional<Error> lost;  // why one could not be saved; training has then ended
};

// The path of the checkpoint if the run ends before its last step.
std::string early_checkpoint(const RunFlags& flags) {
  return flags.checkpoint.empty() ? flags.plan + ".checkpoint.safetensors" : flags.checkpoint;
}

// The path of a checkpoint that will certainly be written, or empty.
std::string expected_checkpoint(const RunFlags& flags) {
  return flags.stop_after > 0 ? early_checkpoint(flags) : flags.checkpoint;
}

// Refuses outputs that would overwrite the plan or another output of this run.
void check_apart(const RunFlags& flags) {
  namespace fs = std::filesystem;
  const std::vector<std::pair<const char*, std::string>> files = {
      {"the plan", flags.plan},
      {"--checkpoint", expected_checkpoint(flags)},
      {"--trace", flags.trace},
      {"--logprobs", flags.log_probs},
      {"-o", flags.output}};
  std::map<fs::path, const char*> seen;
  for (const auto& [flag, file] : files) {
    std::error_code ignored;
    if (file.empty() || fs::is_other(file, ignored) || fs::is_character_file(file, ignored)) {
      continue;
    }
    const auto [other, fresh] = seen.emplace(fs::weakly_canonical(file, ignored), flag);
    if (!fresh) {
      throw bad_input("{} and {}: expected two files, got {} twice", other->second, flag, file);
    }
  }
}

void check_outputs(const RunFlags& flags) {
  check_apart(flags);
  check_output(expected_checkpoint(flags), "--checkpoint");
  check_output(flags.trace, "--trace");
  check_output(flags.log_probs, "--logprobs");
  check_output(flags.output, "-o");
}

void check(const RunFlags& flags) {
  if (flags.checkpoint_every < 0) {
    throw bad_input("--checkpoint-every: expected a number of steps >= 0, got {}",
                    flags.checkpoint_every);
  }
  if (flags.checkpoint_every > 0 && flags.checkpoint.empty()) {
    throw bad_input("--checkpoint-every: there is no --checkpoint FILE to write to");
  }
  if (flags.stop_after < 0) {
    throw bad_input("--stop-after: expected a number of steps >= 0, got {}", flags.stop_after);
  }
  if (flags.local_ranks < 0 || flags.local_ranks > kMostLocalRanks) {
    throw bad_input("--local-ranks: expected 0 to {}, got {}", kMostLocalRanks, flags.local_ranks);
  }
  if (flags.threads < 0) throw bad_input("--threads: expected >= 0, got {}", flags.threads);
  if (!flags.weights.empty() && !flags.resume.empty()) {
    throw bad_input("--weights and --resume exclude each other: a checkpoint holds the weights");
  }
  if (const std::filesystem::path folder = flags.save_adapters;
      std::filesystem::exists(folder) && !std::filesystem::is_directory(folder)) {
    throw bad_input("--save-adapters: {} is a file; expected a folder", flags.save_adapters);
  }
  if (const std::filesystem::path parent = std::filesystem::path(flags.save_adapters).parent_path();
      !parent.empty() && !std::filesystem::is_directory(parent)) {
    throw bad_input("--save-adapters: {} is not a folder, so {} cannot be made in it",
                    parent.string(), flags.save_adapters);
  }
  if (!flags.adapters.empty() && !flags.resume.empty()) {
    throw bad_input("--adapters and --resume exclude each other: a checkpoint holds the adapters");
  }
  if (flags.separator && !flags.documents.empty()) {
    throw bad_input("--documents and --separator both say where documents end; leave one out");
  }
  validate(flags.training);
}

// Refuses flags that are about what the plan does not do.
void check_purpose(const RunFlags& flags, const Plan& plan) {
  if (!plan.strategy.forward_only) {
    if (flags.log_probs.empty()) return;
    throw bad_input("--logprobs: {} trains; --forward-only runs its forward alone", flags.plan);
  }
  for (const auto& [flag, given] : {std::pair("--checkpoint", !flags.checkpoint.empty()),
                                    {"--resume", !flags.resume.empty()},
                                    {"--stop-after", flags.stop_after > 0}}) {
    if (!given) continue;
    throw bad_input(
        "{}: a forward alone changes nothing to continue from; --weights reads a "
        "checkpoint's parameters",
        flag);
  }
  const TrainingConfig& asked = flags.training;
  const TrainingConfig usual;
  for (const auto& [flag, given] : {std::pair("--lr", asked.learning_rate != usual.learning_rate),
                                    {"--min-lr", flags.min_learning_rate >= 0},
                                    {"--warmup", asked.warmup_steps != usual.warmup_steps},
                                    {"--weight-decay", asked.weight_decay != usual.weight_decay},
                                    {"--clip", asked.clip_norm != usual.clip_norm}}) {
    if (given) throw bad_input("{}: a forward alone has no optimizer; leave it out", flag);
  }
}

// One line of the step table, which is printed while training: as many columns as fit the width.
std::string step_line(const std::vector<std::string>& cells) {
  constexpr size_t kWidths[] = {7, 9, 10, 9, 10, 7, 10, 10, 10};
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string cell = fmt::format("{}{:>{}}", i == 0 ? "" : " ", cells[i], kWidths[i]);
    if (line.size() + cell.size() > text_width()) break;
    line += cell;
  }
  return line;
}

// A forward alone has neither gradients nor a learning rate.
void print_header(bool trains) {
  std::vector<std::string> cells = {"step", "loss"};
  if (trains) cells.insert(cells.end(), {"grad norm", "lr"});
  cells.insert(cells.end(), {"tokens/s", "MFU", "device", "host", "nvme"});
  say("{}\n", bold(step_line(cells)));
}

void print_step(const StepReport& r) {
  const Prediction& m = r.measured;
  const std::vector<double>& sequences = r.sequence_losses;
  std::vector<std::string> cells = {fmt::format("{}", r.step), fmt::format("{:.4f}", r.loss)};
  if (sequences.empty()) {
    cells.push_back(fmt::format("{:.4g}", r.gradient_norm));
    cells.push_back(fmt::format("{:.2e}", r.learning_rate));
  }
  cells.insert(cells.end(), {fmt::format("{:.1f}", m.tokens_per_second), percent(m.mfu),
                             bytes_or_dash(m.peak_bytes[0]), bytes_or_dash(m.peak_bytes[1]),
                             bytes_or_dash(m.peak_bytes[2])});
  say("{}\n", step_line(cells));
  const int64_t before = (r.step - 1) * static_cast<int64_t>(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    say("  sequence {}: loss {:.6f}\n", before + static_cast<int64_t>(i), sequences[i]);
  }
  std::fflush(stdout);
}

// A full disk must not lose hours of training: the error is kept until the measurements are
// written.
void save(const Trainer& trainer, const std::string& path, Outcome& outcome) {
  try {
    trainer.save_checkpoint(path);
    outcome.checkpoint = path;
  } catch (const Error& e) {
    outcome.lost = e;
  }
}

// Runs steps until done, or until a signal requests a stop, and saves checkpoints on the way. All
// ranks run the same steps, unless one cannot save.
Outcome train(const RunFlags& flags, const RankContext& context, Trainer& trainer,
              RunRecorder& recorder, bool prints, bool trains, std::vector<float>& log_probs) {
  Outcome outcome;
  const int64_t first = trainer.steps_done();
  if (prints) print_header(trains);
  while (trainer.steps_done() < flags.training.steps && !outcome.stopped_early) {
    StepReport report = trainer.step();
    log_probs.insert(log_probs.end(), report.log_probs.begin(), report.log_probs.end());
    report.log_probs = {};
    recorder.add(report, trainer.executor().program(), trainer.last_timeline());
    if (prints) print_step(report);
    if (!std::isfinite(report.loss)) {
      throw failed("step {}: the loss is not finite ({}); try a smaller --lr", report.step,
                   report.loss);
    }
    if (flags.checkpoint_every > 0 && report.step % flags.checkpoint_every == 0) {
      save(trainer, flags.checkpoint, outcome);
      if (outcome.lost) return outcome;
    }
    const bool enough = flags.stop_after > 0 && report.step - first >= flags.stop_after;
    const bool asked = any_rank(context.comm, InterruptGuard::requested());
    outcome.stopped_early = (enough || asked) && report.step < flags.training.steps;
  }
  return outcome;
}

// Predicted device memory in use: the plan's arena, and the profile's figures for other
// allocations; NCCL only if there are ranks to exchange with.
int64_t predicted_in_use(const Plan& plan) {
  HardwareProfile hardware = plan.hardware;
  if (plan.strategy.parallel.ranks() == 1) hardware.device.overhead.erase("nccl");
  return plan.predicted.peak_bytes[0] + overhead_bytes(hardware);
}

Json record_json(const RunFlags& flags, const Plan& plan, const Trainer& trainer,
                 const RunRecorder& recorder, const Outcome& outcome, const RankContext& context,
                 const Taken& taken) {
  Json steps = Json::array();
  for (const StepReport& report : recorder.steps()) steps.push_back(step_json(report));
  const Prediction measured = prediction_of(plan, recorder.step_seconds(), recorder.peak_bytes());
  Json kinds = Json::object();
  const auto seconds = recorder.kind_seconds();
  std::array<bool, kOpKindCount> occurs{};
  for (const Op& op : trainer.executor().program().ops) occurs[static_cast<int>(op.kind)] = true;
  for (int kind = 0; kind < kOpKindCount; ++kind) {
    if (occurs[kind]) kinds[std::string(name_of(static_cast<OpKind>(kind)))] = seconds[kind];
  }
  Json figures = {{"steps", recorder.steps().size()}};
  figures.update(prediction_json(measured));
  figures["overlapped_copy_seconds"] = recorder.overlapped_copy_seconds();
  figures["op_kind_seconds"] = std::move(kinds);
  figures["arena_memory_bytes"] = taken.arena_bytes;
  figures["process_peak_bytes"] = process_peak_bytes();
  if (taken.device_in_use) {
    figures["device_in_use"] = {{"predicted_bytes", predicted_in_use(plan)},
                                {"bytes", *taken.device_in_use}};
  }
  Json ranks = Json::array();
  const std::vector<double> busy = recorder.busy_seconds();
  for (const Traffic& rank : recorder.steps().back().traffic) {
    ranks.push_back({{"predicted_sent_bytes", rank.predicted},
                     {"sent_bytes", rank.measured},
                     {"busy_seconds", busy[ranks.size()]}});
  }
  figures["ranks"] = std::move(ranks);
  const std::optional<std::string> device = trainer.device_text();
  return {{"longspan_run", 1},
          {"created_by", version_text() + " run"},
          {"plan_file", flags.plan},
          {"plan", plan_summary_json(plan)},
          {"plan_crc32", checksum_of(plan)},
          {"ranks", context.comm.size()},
          {"communicator", context.comm.name()},
          {"device", device ? Json(*device) : Json()},
          {"data", flags.data},
          {"seed", flags.training.seed},
          {"stopped_early", outcome.stopped_early},
          {"checkpoint", outcome.checkpoint.empty() ? Json() : Json(outcome.checkpoint)},
          {"checkpoint_error", outcome.lost ? Json(outcome.lost->what()) : Json()},
          {"predicted", forecast_json(plan.hardware, plan.predicted)},
          {"measured", std::move(figures)},
          {"steps", std::move(steps)}};
}

// Adds the bytes sent by one rank: the rank with the most predicted bytes, or the first whose
// measured bytes differ from its prediction. Rows of experts on several ranks go `by_routing`.
void add_traffic(Table& table, const std::vector<Traffic>& traffic, bool by_routing) {
  if (traffic.size() == 1) return;
  Traffic shown;
  bool equal = true;
  for (const Traffic& rank : traffic) {
    if (rank.predicted >= shown.predicted && equal) shown = rank;
    if (rank.predicted != rank.measured && equal) {
      shown = rank;
      equal = false;
    }
  }
  table.add({"bytes sent by a rank", fmt::format("{}", shown.predicted),
             fmt::format("{}", shown.measured),
             equal        ? "equal on all"
             : by_routing ? "by the routing"
                          : "DIFFERENT"});
}

void print_outcome(const RunFlags& flags, const Plan& plan, const Trainer& trainer,
                   const RunRecorder& recorder, const Outcome& outcome, const Taken& taken) {
  const Prediction& predicted = plan.predicted;
  const Prediction measured = prediction_of(plan, recorder.step_seconds(), recorder.peak_bytes());
  say("{}\n",
      bold(recorder.steps().size() > 1 ? "Predicted against measured (median step after the first)"
                                       : "Predicted against measured"));
  Table table({{"", false}, {"predicted"}, {"measured"}, {"measured/predicted"}});
  table.add({"step", format_seconds(predicted.step_seconds), format_seconds(measured.step_seconds),
             fmt::format("{:.3f}", measured.step_seconds / predicted.step_seconds)});
  table.add({"MFU", percent(predicted.mfu), percent(measured.mfu),
             fmt::format("{:.3f}", measured.mfu / predicted.mfu)});
  for (int tier = 0; tier < kTierCount; ++tier) {
    const int64_t expected = predicted.peak_bytes[tier];
    const int64_t actual = measured.peak_bytes[tier];
    if (expected == 0 && actual == 0) continue;
    table.add({std::string(name_of(static_cast<Tier>(tier))) + " bytes",
               fmt::format("{}", expected), fmt::format("{}", actual),
               expected == actual ? "equal" : "DIFFERENT"});
  }
  if (taken.device_in_use) {
    const auto expected = static_cast<double>(predicted_in_use(plan));
    table.add({"device bytes in use", fmt::format("{:.0f}", expected),
               fmt::format("{}", *taken.device_in_use),
               fmt::format("{:.3f}", static_cast<double>(*taken.device_in_use) / expected)});
  }
  add_traffic(table, recorder.steps().back().traffic, plan.strategy.parallel.expert > 1);
  table.print();
  say("  the process took {} of memory at most, {} of it arenas\n",
      format_bytes(process_peak_bytes()), format_bytes(taken.arena_bytes));
  if (outcome.stopped_early && plan.strategy.forward_only) {
    say("Stopped after step {} of {}.\n", trainer.steps_done(), flags.training.steps);
  } else if (outcome.stopped_early) {
    say("Stopped after step {} of {}; --resume {} continues.\n", trainer.steps_done(),
        flags.training.steps, outcome.checkpoint);
  } else if (!outcome.checkpoint.empty()) {
    say("Wrote {}\n", outcome.checkpoint);
  }
  if (!flags.output.empty()) say("Wrote {}\n", flags.output);
}

// Throws unless the engine can run the plan with the ranks that are started.
void check_runs(const Plan& plan, const RunFlags& flags, int64_t started) {
  check_shares(plan.model, plan.strategy, plan.tokens());
  if (const std::string reason = why_not_run(plan); !reason.empty()) {
    throw bad_input("{}: {}", flags.plan, reason);
  }
  check_model(plan.model);
  check_backend(plan.hardware);
  const int64_t ranks = plan.strategy.parallel.ranks();
  if (started == ranks) return;
  if (started == 1 && flags.local_ranks == 0) {
    throw bad_input(
        "{}: the plan is for {} ranks: run it with --local-ranks {}, or as mpirun -n {}",
        flags.plan, ranks, ranks, ranks);
  }
  throw bad_input("{}: the plan is for {} rank{}, and {} {} started", flags.plan, ranks,
                  ranks == 1 ? "" : "s", started, started == 1 ? "is" : "are");
}

// Reads the plan. Throws unless it and the options can be run with the ranks that are started.
Plan checked_plan(const RunFlags& flags, int64_t started) {
  check(flags);
  Plan plan = load_plan(flags.plan, flags.forward_only);
  check_purpose(flags, plan);
  check_listable(plan, flags.plan);
  check_fits(plan, plan.predicted.peak_bytes);
  check_runs(plan, flags, started);
  return plan;
}

int threads_per_rank(const RunFlags& flags, const RankContext& context) {
  if (flags.threads > 0 || context.ranks_here == 1) return flags.threads;
  return processor_share(context.ranks_here);
}

// The plan and the flags that have to be equal on all ranks. Ranks that differ would train
// different things, or wait for messages that no rank sends.
Json common_to_ranks(const RunFlags& flags, const Plan& plan) {
  const TrainingConfig& t = flags.training;
  return {{"plan", write_plan(plan)},
          {"--steps", t.steps},
          {"--warmup", t.warmup_steps},
          {"--lr", t.learning_rate},
          {"--min-lr", t.min_learning_rate},
          {"--weight-decay", t.weight_decay},
          {"--clip", t.clip_norm},
          {"--seed", t.seed},
          {"--stop-after", flags.stop_after},
          {"--checkpoint", !flags.checkpoint.empty()},
          {"--checkpoint-every", flags.checkpoint_every},
          {"--weights", !flags.weights.empty()},
          {"--resume", !flags.resume.empty()},
          {"--adapters", !flags.adapters.empty()},
          {"--save-adapters", !flags.save_adapters.empty()},
          {"--logprobs", !flags.log_probs.empty()},
          {"--trace", !flags.trace.empty()},
          {"--documents", flags.documents},
          {"--separator", flags.separator ? Json(*flags.separator) : Json()}};
}

void check_same_on_all(const RunFlags& flags, const RankContext& context, const Plan& plan) {
  if (context.comm.size() == 1) return;
  const Json own = common_to_ranks(flags, plan);
  std::string text = own.dump();
  uint64_t size = text.size();
  const Group world = whole_world(context.comm);
  broadcast(context.comm, world, std::as_writable_bytes(std::span(&size, 1)), 0);
  text.resize(size);
  broadcast(context.comm, world, std::as_writable_bytes(std::span(text)), 0);
  agree(context.comm, [&] {
    const Json first = Json::parse(text);
    for (const auto& [key, value] : own.items()) {
      if (value == first.at(key)) continue;
      if (key == "plan")
        throw bad_input("{}: rank 0 has another plan; start all ranks with one", flags.plan);
      throw bad_input("{}: rank 0 has another value; start all ranks with the same flags", key);
    }
  });
}

std::string trace_of_all(const RankContext& context, const Trainer& trainer) {
  const int rank = context.comm.rank();
  const std::string name =
      context.comm.size() == 1 ? "measured" : fmt::format("measured rank {}", rank);
  const std::string events =
      trace_events(trainer.executor().program(), trainer.last_timeline(), name, rank);
  const std::vector<std::string> parts = gather(context.comm, whole_world(context.comm), events, 0);
  return context.is_leader() ? trace_document(parts) : std::string();
}

// The data, in documents if it has some: those of the flags, else of the plan's lengths in a random
// order.
std::shared_ptr<const TokenSource> open_data(const RunFlags& flags, const Plan& plan) {
  std::shared_ptr<const TokenSource> tokens =
      open_tokens(flags.data, flags.format, plan.sequence, plan.model.vocab);
  DocumentRule rule;
  if (flags.separator) {
    if (*flags.separator >= plan.model.vocab) {
      throw bad_input("--separator: expected an id of the vocabulary, less than {}, got {}",
                      plan.model.vocab, *flags.separator);
    }
    rule.separator = static_cast<int32_t>(*flags.separator);
  }
  if (!flags.documents.empty()) {
    rule.lengths = listed(parse_lengths_of_documents(flags.documents, "--documents"));
  } else if (!flags.separator) {
    if (plan.model.documents.empty()) return tokens;
    rule.lengths = drawn_lengths(plan.model.documents, flags.training.seed);
  }
  return in_documents(std::move(tokens), rule);
}

// One rank of the run.
void run_rank(const RunFlags& flags, const RankContext& context, bool json) {
  Plan plan;
  std::shared_ptr<const TokenSource> tokens;
  std::unique_ptr<Trainer> trainer;
  agree(context.comm, [&] {
    plan = checked_plan(flags, context.comm.size());
    if (context.is_leader()) check_outputs(flags);
    tokens = open_data(flags, plan);
    if (!flags.weights.empty()) check_weights(plan.model, flags.weights);
    if (!flags.adapters.empty()) check_adapters(plan.model, flags.adapters);
    if (!flags.save_adapters.empty() && !plan.model.adapters) {
      throw bad_input("--save-adapters: {} has no adapters; make the plan with --lora",
                      plan.model.name);
    }
  });
  check_same_on_all(flags, context, plan);
  // Must follow the checks, because trainers of several ranks exchange messages.
  agree(context.comm, [&] {
    TrainerOptions options;
    options.compute_threads = threads_per_rank(flags, context);
    options.nvme_directory = flags.nvme_directory;
    options.comm = &context.comm;
    options.keep_log_probs = !flags.log_probs.empty();
    ProgressBar bar;
    if (context.is_leader()) {
      options.preparing = [&bar](int64_t done, int64_t all) {
        bar.show("building attention's plans",
                 static_cast<double>(done) / static_cast<double>(all));
      };
    }
    trainer = std::make_unique<Trainer>(plan, flags.training, tokens, options);
    if (!flags.weights.empty()) trainer->load_weights(flags.weights);
    if (!flags.adapters.empty()) trainer->load_adapters(flags.adapters);
    if (!flags.resume.empty()) {
      trainer->resume(flags.resume);
      if (trainer->steps_done() >= flags.training.steps) {
        throw bad_input("--resume: {} is at step {} already; --steps must be larger", flags.resume,
                        trainer->steps_done());
      }
    }
    // Must follow the trainer's construction: the file tier may use the same disk.
    if (const std::string path = expected_checkpoint(flags); context.is_leader() && !path.empty()) {
      check_space(path, checkpoint_bytes(plan.model), "the checkpoint");
    }
  });
  if (context.is_leader()) {
    warn_of_disturbance(plan.hardware);
    if (const auto warning = trainer->device_warning()) print_warning(*warning);
  }
  const bool prints = context.is_leader() && !json;
  if (prints) {
    say("{}\n", bold(headline(plan)));
    if (context.comm.size() > 1) {
      say("  {}, by {}\n", describe(plan.strategy.parallel),
          context.comm.name() == "local" ? "threads of this process" : "MPI");
    }
    if (const auto device = trainer->device_text()) say("  on {}\n", *device);
    say("  predicted: {} a step, MFU {}\n", format_seconds(plan.predicted.step_seconds),
        percent(plan.predicted.mfu));
  }

  // The arenas of this rank, or of all ranks if they share a process.
  const auto arenas = trainer->executor().arena_bytes();
  Taken taken{arenas[0] + arenas[1], std::nullopt};
  if (context.comm.name() == "local") {
    taken.arena_bytes = static_cast<int64_t>(all_reduce_sum(
        context.comm, whole_world(context.comm), static_cast<double>(taken.arena_bytes)));
  }

  RunRecorder recorder;
  const bool trains = !plan.strategy.forward_only;
  std::vector<float> log_probs;  // of all sequences
  Outcome outcome = train(flags, context, *trainer, recorder, prints, trains, log_probs);
  // Collective work comes before the last checkpoint: if saving fails on a rank, that rank
  // continues alone.
  const bool traced = !flags.trace.empty() && (!outcome.lost || context.comm.size() == 1);
  const std::string trace = traced ? trace_of_all(context, *trainer) : "";
  if (!outcome.lost && !flags.save_adapters.empty()) trainer->save_adapters(flags.save_adapters);
  if (context.comm.name() != "local") taken.device_in_use = trainer->device_bytes_in_use();
  const std::string last = outcome.stopped_early ? early_checkpoint(flags) : flags.checkpoint;
  if (trains && !outcome.lost && !last.empty()) save(*trainer, last, outcome);
  if (!context.is_leader()) {
    if (outcome.lost) throw Error(*outcome.lost);
    return;
  }
  const Json record = record_json(flags, plan, *trainer, recorder, outcome, context, taken);
  if (!flags.output.empty()) write_file_atomically(flags.output, record.dump(1) + "\n");
  if (traced) write_file_atomically(flags.trace, trace);
  if (!flags.log_probs.empty()) write_npy(flags.log_probs, log_probs, plan.sequence);
  if (outcome.lost) {
    throw Error(
        outcome.lost->kind(),
        fmt::format("{}{}", outcome.lost->what(),
                    flags.output.empty() ? "" : "; what was measured is in " + flags.output));
  }
  if (json) {
    print_json(record);
  } else {
    print_outcome(flags, plan, *trainer, recorder, outcome, taken);
    if (!flags.trace.empty()) say("Wrote {} (the last step)\n", flags.trace);
    if (!flags.save_adapters.empty()) say("Wrote {} (adapters)\n", flags.save_adapters);
    if (!flags.log_probs.empty()) say("Wrote {}\n", flags.log_probs);
  }
}

int run(RunFlags flags, bool json) {
  flags.training.min_learning_rate =
      flags.min_learning_rate < 0 ? flags.training.learning_rate / 10 : flags.min_learning_rate;
  if (flags.local_ranks != 0) checked_plan(flags, flags.local_ranks);  // before threads start
  const InterruptGuard guard;
  return on_ranks(flags.local_ranks, json,
                  [&](const RankContext& context) { run_rank(flags, context, json); });
}

}  // namespace

void add_run(Verb& program) {
  auto flags = std::make_shared<RunFlags>();
  Verb verb =
      program.add_verb("run", "Train by a plan and measure",
                       "longspan run plan.yaml --steps 20 --data examples/opticks.txt -o run.json");
  TrainingConfig& training = flags->training;
  verb.add_option("plan", flags->plan, "The plan's file").required();
  verb.add_option("--steps", training.steps, "Optimizer steps in all, resumed ones included");
  verb.add_option("--data", flags->data, "A token file, or synthetic");
  verb.add_option("--format", flags->format, "text, uint16, uint32 or auto (by the name)");
  verb.add_option("--documents", flags->documents,
                  "Lengths of the data's documents, in their order: a file, or e.g. 512:100,32K:1");
  verb.add_option("--separator", flags->separator, "The token id that ends a document of the data")
      .within(0, int64_t{1} << 31);
  verb.add_option("--weights", flags->weights, "Initial weights: a Hugging Face folder or file");
  verb.add_option("--adapters", flags->adapters, "Initial adapters: a folder in peft's format");
  verb.add_option("--save-adapters", flags->save_adapters,
                  "A folder for the adapters at the end, in peft's format");
  verb.add_option("--checkpoint", flags->checkpoint, "Where checkpoints are written");
  verb.add_option("--checkpoint-every", flags->checkpoint_every,
                  "Steps between checkpoints; 0: only at the end");
  verb.add_option("--resume", flags->resume, "Continue from a checkpoint");
  verb.add_option("--stop-after", flags->stop_after,
                  "Stop and save after this many steps of this run, as if interrupted; 0: do not");
  verb.add_option("--lr", training.learning_rate, "Learning rate at its peak");
  verb.add_option("--min-lr", flags->min_learning_rate, "Learning rate at the end of the cosine")
      .not_negative()
      .shown_default("a tenth of --lr");
  verb.add_option("--warmup", training.warmup_steps, "Steps of linear warmup");
  verb.add_option("--weight-decay", training.weight_decay, "AdamW's weight decay");
  verb.add_option("--clip", training.clip_norm, "Gradient norm to clip to; 0: do not");
  verb.add_option("--seed", training.seed, "Seed of the initial weights");
  verb.add_option("--local-ranks", flags->local_ranks,
                  "Run the plan's ranks as threads of this process; else as mpirun started them");
  verb.add_option("--threads", flags->threads,
                  "Compute threads of a rank; 0: its share of the cores");
  verb.add_option("--nvme-dir", flags->nvme_directory, "Folder of the file tier");
  add_forward_flag(verb, flags->forward_only);
  verb.add_option("--logprobs", flags->log_probs,
                  "With a forward alone: write the log-probability of every token but the first of "
                  "each sequence, as float32 in NumPy's format");
  verb.add_option("--trace", flags->trace, "Write the last step's timeline as a Perfetto trace");
  verb.add_option("-o,--output", flags->output, "Write everything measured as JSON");
  verb.runs([flags](bool json) { return run(*flags, json); });
}

}  // namespace longspan::cli
