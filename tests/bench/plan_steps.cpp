#include "plan_steps.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>

#include "base/median.h"
#include "base/processors.h"
#include "engine/comm/collectives.h"
#include "engine/comm/local.h"
#include "engine/comm/mpi.h"
#include "engine/profile/profile.h"
#include "hwprofiles/catalog.h"
#include "planner/cost/cost_model.h"
#include "planner/plan/pipeline_plan.h"
#include "planner/simulate/simulate.h"

namespace longspan::bench {
namespace {

// One of this many plans takes a step between two rounds of the profile. Most steps take longer
// than a round.
constexpr size_t kTurn = 5;

// Seconds of processor time this process, and all processes together, have used so far.
struct ProcessorTime {
  double own = 0, all = 0;
};
ProcessorTime processor_time() {
  ProcessorTime now;
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  now.own = static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0;
  if (file >> word >> user >> nice >> system) {
    now.all = (user + nice + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  return now;
}

// Share of the time in exchanges during which the compute stream was busy.
double hidden_share(const Program& program, const Timeline& timeline) {
  std::vector<Span> compute;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].stream == Stream::compute) compute.push_back(timeline.spans[i]);
  }
  double hidden = 0, all = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].stream != Stream::comm) continue;
    const Span& span = timeline.spans[i];
    all += span.end - span.start;
    auto it = std::lower_bound(compute.begin(), compute.end(), span.start,
                               [](const Span& c, double start) { return c.end < start; });
    for (; it != compute.end() && it->start < span.end; ++it) {
      hidden += std::max(0.0, std::min(it->end, span.end) - std::max(it->start, span.start));
    }
  }
  return all > 0 ? hidden / all : 0;
}

// A placeholder machine, until the profile is measured. Its rates only count for schedules that
// arrange themselves by times.
HardwareProfile some_machine(int64_t ranks) {
  constexpr double kPlenty = 64.0 * (int64_t{1} << 30);
  HardwareProfile hw = load_hardware("cpu-example");
  hw.name = "local";
  hw.devices_per_node = ranks;
  hw.device.memory_bytes.value = hw.host.memory_bytes.value = hw.nvme.capacity_bytes.value =
      kPlenty;
  hw.host.cores = machine_processors();
  return hw;
}

Plan plan_of(const PlanCase& c, int64_t ranks) {
  Plan plan;
  plan.model = fit_to_length(c.model, c.sequence);
  plan.hardware = some_machine(ranks);
  plan.sequence = c.sequence;
  plan.microbatches = c.microbatches;
  plan.dtype = DType::float32;
  plan.strategy = c.strategy;
  return plan;
}

}  // namespace

ModelSpec small_llama(int64_t kv_heads) {
  ModelSpec m;
  m.name = "bench-llama";
  m.layers = 2;
  m.hidden = 512;
  m.heads = 8;
  m.kv_heads = kv_heads;
  m.head_dim = 64;
  m.ffn = 1408;
  m.vocab = 2048;
  m.max_positions = 16384;
  return m;
}

OpKind Outcome::furthest_off() const {
  const auto off = [&](int k) { return std::abs(predicted_kinds[k] - measured_kinds[k]); };
  int worst = 0;
  for (int k = 1; k < kOpKindCount; ++k) {
    if (off(k) > off(worst)) worst = k;
  }
  return static_cast<OpKind>(worst);
}

void print_kinds(const Outcome& o) {
  for (int k = 0; k < kOpKindCount; ++k) {
    if (o.measured_kinds[k] == 0) continue;
    fmt::print("    {:20} {:8.2f} -> {:8.2f} ms  {:+6.1f}%\n", name_of(static_cast<OpKind>(k)),
               o.predicted_kinds[k] * 1e3, o.measured_kinds[k] * 1e3,
               (o.predicted_kinds[k] / o.measured_kinds[k] - 1) * 100);
  }
}

PlanSteps::PlanSteps(const PlanCase& c, Communicator* comm, int threads)
    : name_(c.name), threads_(threads), plan_(plan_of(c, comm == nullptr ? 1 : comm->size())) {
  TrainingConfig config;
  config.steps = 1000;
  TrainerOptions options;
  options.comm = comm;
  options.compute_threads = threads;
  options.nvme_directory = std::filesystem::temp_directory_path();
  std::shared_ptr<const TokenSource> tokens =
      open_tokens("synthetic", "auto", c.sequence, plan_.model.vocab);
  if (const Documents& documents = plan_.model.documents; !documents.empty()) {
    tokens = in_documents(std::move(tokens), {{}, drawn_lengths(documents, config.seed)});
  }
  trainer_ = std::make_unique<Trainer>(plan_, config, std::move(tokens), options);
  trainer_->step();
}

void PlanSteps::step() {
  const ProcessorTime before = processor_time();
  const StepReport report = trainer_->step();
  const double seconds = report.measured.step_seconds;
  const std::vector<double>& busy = report.busy_seconds;
  const double all_busy = std::accumulate(busy.begin(), busy.end(), 0.0);
  const ProcessorTime after = processor_time();
  const double own = after.own - before.own;
  const Program& program = trainer_->executor().program();
  steps_.push_back({.seconds = seconds,
                    .others = std::max(0.0, (after.all - before.all - own) / seconds),
                    .own = own / threads_,
                    .hidden = hidden_share(program, trainer_->last_timeline()),
                    .bubble = 1 - all_busy / (static_cast<double>(busy.size()) * seconds),
                    .kinds = seconds_by_kind(program, trainer_->last_timeline())});
}

Outcome PlanSteps::outcome(const HardwareProfile& hw) const {
  Outcome outcome;
  const Program& program = trainer_->executor().program();
  if (plan_.strategy.parallel.has_pipeline()) {
    Plan plan = plan_;
    plan.hardware = hw;
    const PipelineStep step = pipeline_step(plan);
    outcome.predicted = step.whole.step_seconds;
    double busy = 0;
    for (const PipelineRank& rank : step.ranks) busy += rank.busy_seconds;
    outcome.predicted_bubble =
        1 - busy / (static_cast<double>(step.ranks.size()) * outcome.predicted);
    // Each op alone.
    const CostModel cost(hw, plan_.dtype);
    const std::vector<double> durations = cost.durations(program);
    Timeline alone;
    for (const Op& op : program.ops) alone.spans.push_back({0, durations[op.shape]});
    outcome.predicted_kinds = seconds_by_kind(program, alone);
  } else {
    const CostModel cost(hw, plan_.dtype);
    const Timeline expected =
        simulate(program, lay_out(program), cost.durations(program), cost.interference());
    outcome.predicted = expected.step_seconds;
    outcome.predicted_kinds = seconds_by_kind(program, expected);
  }
  const auto over_steps = [&](auto&& value) {
    std::vector<double> values;
    for (const Step& step : steps_) values.push_back(value(step));
    return median(values);
  };
  outcome.measured = over_steps([](const Step& step) { return step.seconds; });
  outcome.measured_bubble = over_steps([](const Step& step) { return step.bubble; });
  outcome.hidden = over_steps([](const Step& step) { return step.hidden; });
  outcome.others = over_steps([](const Step& step) { return step.others; });
  outcome.own = over_steps([](const Step& step) { return step.own; });
  for (int k = 0; k < kOpKindCount; ++k) {
    outcome.measured_kinds[k] = over_steps([k](const Step& step) { return step.kinds[k]; });
  }
  return outcome;
}

HardwareProfile measure_in_turns(double seconds, int rounds, size_t plans,
                                 const std::function<void(size_t)>& step) {
  size_t taken = 0;
  const auto next = [&] {
    if (isatty(STDERR_FILENO)) fmt::print(stderr, "\rround {} ", taken / plans + 1);
    step(taken++ % plans);
  };
  ProfileOptions options;
  options.nvme_directory = std::filesystem::temp_directory_path();
  options.seconds_budget = seconds;
  options.between_rounds = [&] {
    for (size_t i = 0; i < plans; i += kTurn) next();
  };
  HardwareProfile hw = measure_machine(options, {});
  while (taken < plans * static_cast<size_t>(rounds)) next();
  if (isatty(STDERR_FILENO)) fmt::print(stderr, "\r");
  fmt::print("{} rounds\n", taken / plans);
  return hw;
}

int run_on_ranks(int argc, char** argv, const std::string& description,
                 const std::function<bool(const RankFlags&, Communicator&)>& body) {
  RankFlags flags;
  CLI::App app(description);
  app.add_option("--ranks", flags.ranks, "Ranks, as threads of this process; not under mpirun")
      ->check(CLI::Range(2, 64));
  app.add_option("--rounds", flags.rounds, "Steps measured per plan at least, after a first one")
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Time to spend on the profile")->capture_default_str();
  app.add_flag("--kinds", flags.kinds, "Print every op kind");
  app.add_flag("--no-check", flags.no_check, "Exit status 0 whatever the errors are");
  CLI11_PARSE(app, argc, argv);
  try {
    bool good = true;
    if (launched_by_mpi()) {
      MpiWorld world({});
      good = body(flags, world.communicator());
    } else {
      run_local_ranks(flags.ranks, [&](Communicator& comm) {
        const bool own = body(flags, comm);
        if (comm.rank() == 0) good = own;
      });
    }
    return good || flags.no_check ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}

HardwareProfile measure_with_ranks(double seconds, int rounds, Communicator& comm,
                                   std::vector<PlanSteps>& plans) {
  const Group world = whole_world(comm);
  // Tells all ranks which plan takes a step; after the last step, plans.size().
  const auto tell = [&](size_t plan) {
    broadcast(comm, world, std::as_writable_bytes(std::span(&plan, 1)), 0);
    if (plan < plans.size()) plans[plan].step();
    return plan < plans.size();
  };
  if (comm.rank() != 0) {
    while (tell(0)) {
    }
    return {};
  }
  const HardwareProfile hw = measure_in_turns(seconds, rounds, plans.size(), tell);
  tell(plans.size());
  return hw;
}

}  // namespace longspan::bench
