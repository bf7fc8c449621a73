// Many ranks: is the predicted step time right, and do exchanges hide behind compute?
//
//   ranks_bench [--ranks 2] [--rounds 5] [--seconds 10] [--no-check]     ranks as threads
//   mpirun -n 2 --bind-to none ranks_bench ...                           ranks as processes
//
// Exit status 1 if a prediction is off by more than 25 %. For a machine that does little else, with
// a core for each rank at least. As in prediction_bench, rounds of the profile and steps of the
// plans take turns; the exchanges are measured at the end, between the ranks themselves.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/comm/collectives.h"
#include "engine/comm/local.h"
#include "engine/comm/mpi.h"
#include "engine/profile/profile.h"
#include "engine/train/trainer.h"
#include "planner/cost/cost_model.h"
#include "planner/simulate/simulate.h"

namespace {

using namespace longspan;

constexpr double kWorstLimit = 0.25;
constexpr int64_t kSequence = 2048;

struct Flags {
  int ranks = 2;
  int rounds = 5;
  double seconds = 10;
  bool no_check = false;
};

struct Case {
  std::string name;
  Strategy strategy;
};

ModelSpec llama() {
  ModelSpec m;
  m.name = "bench-llama";
  m.layers = 2;
  m.hidden = 512;
  m.heads = 8;
  m.kv_heads = 4;
  m.head_dim = 64;
  m.ffn = 1408;
  m.vocab = 2048;
  m.max_positions = kSequence;
  return m;
}

std::vector<Case> cases(int64_t ranks) {
  const auto preset = [](const char* name, const Parallel& parallel) {
    return make_preset(name, llama(), kSequence, kSequence / 4, parallel);
  };
  const Parallel ulysses{.ulysses = ranks, .zero = 3};
  Parallel waits = ulysses;
  waits.overlap = false;
  return {{"fpdt, overlapped", preset("fpdt", ulysses)},
          {"fpdt, not overlapped", preset("fpdt", waits)},
          {"ulysses, ZeRO 3", preset("ulysses", ulysses)},
          {"alst, ZeRO 1", preset("alst", {.ulysses = ranks, .zero = 1})},
          {"upipe, ZeRO 3", preset("upipe", ulysses)},
          {"ring, ZeRO 0", preset("ring", {.ring = ranks})},
          {"data, ZeRO 0", preset("checkpoint", {.data = ranks})},
          {"data, ZeRO 3", preset("checkpoint", {.data = ranks, .zero = 3})},
          {"tensor", preset("megatron-sp", {.tensor = ranks})}};
}

double median_of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 == 1 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

// Seconds of exchanges during which the compute stream was busy, and of exchanges in all.
struct Hidden {
  double beside = 0, all = 0;
};
Hidden hidden_seconds(const Program& program, const Timeline& timeline) {
  std::vector<Span> compute;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].stream == Stream::compute) compute.push_back(timeline.spans[i]);
  }
  Hidden hidden;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].stream != Stream::comm) continue;
    const Span& span = timeline.spans[i];
    hidden.all += span.end - span.start;
    auto it = std::lower_bound(compute.begin(), compute.end(), span.start,
                               [](const Span& c, double start) { return c.end < start; });
    for (; it != compute.end() && it->start < span.end; ++it) {
      hidden.beside += std::max(0.0, std::min(it->end, span.end) - std::max(it->start, span.start));
    }
  }
  return hidden;
}

// Something to run on before the profile is there.
HardwareProfile some_machine(int64_t ranks) {
  constexpr double kPlenty = 64.0 * (int64_t{1} << 30);
  HardwareProfile hw;
  hw.name = "local";
  hw.devices_per_node = ranks;
  hw.device.backend = "cpu";
  hw.device.memory_bytes.value = hw.host.memory_bytes.value = kPlenty;
  return hw;
}

// One rank's part in a plan that trains, a step per round.
class Runner {
 public:
  Runner(const Case& c, Communicator& comm, int threads) : name_(c.name) {
    plan_.model = llama();
    plan_.hardware = some_machine(comm.size());
    plan_.sequence = kSequence;
    plan_.strategy = c.strategy;
    TrainerOptions options;
    options.comm = &comm;
    options.compute_threads = threads;
    options.nvme_directory = std::filesystem::temp_directory_path();
    TrainingConfig config;
    config.steps = 1000;
    trainer_ = std::make_unique<Trainer>(
        plan_, config, open_tokens("synthetic", "auto", kSequence, plan_.model.vocab), options);
    trainer_->step();  // warms up
  }

  void step() {
    seconds_.push_back(trainer_->step().measured.step_seconds);
    const Hidden hidden = hidden_seconds(trainer_->executor().program(), trainer_->last_timeline());
    hidden_.push_back(hidden.all > 0 ? hidden.beside / hidden.all : 0);
  }
  const std::string& name() const { return name_; }
  double measured() const { return median_of(seconds_); }
  double hidden() const { return median_of(hidden_); }
  double predicted(const HardwareProfile& hw) const {
    const Program& program = trainer_->executor().program();
    const CostModel cost(hw, plan_.dtype);
    return simulate(program, lay_out(program), cost.durations(program), cost.interference())
        .step_seconds;
  }

 private:
  std::string name_;
  Plan plan_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<double> seconds_, hidden_;
};

// The first rank leads the rounds, the others follow until it is done.
HardwareProfile run_rounds(const Flags& flags, Communicator& comm, std::vector<Runner>& runners) {
  const Group world = whole_world(comm);
  const auto tell = [&](bool more) {
    std::byte word{more};
    broadcast(comm, world, {&word, 1}, 0);
    return word != std::byte{0};
  };
  const auto step = [&] {
    for (Runner& runner : runners) runner.step();
  };
  HardwareProfile hw;
  if (comm.rank() != 0) {
    while (tell(false)) step();
    return hw;
  }
  int rounds = 0;
  const auto lead = [&] {
    tell(true);
    step();
    ++rounds;
  };
  ProfileOptions options;
  options.nvme_directory = std::filesystem::temp_directory_path();
  options.seconds_budget = flags.seconds;
  options.between_rounds = lead;
  hw = measure_machine(options, {});
  while (rounds < flags.rounds) lead();
  tell(false);
  return hw;
}

// Returns the worst error, on rank 0.
double run_rank(const Flags& flags, Communicator& comm) {
  const int threads =
      std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / comm.size());
  std::vector<Runner> runners;
  for (const Case& c : cases(comm.size())) runners.emplace_back(c, comm, threads);
  HardwareProfile hw = run_rounds(flags, comm, runners);
  measure_fabric(hw, comm, comm.size());
  if (comm.rank() != 0) return 0;
  hw.devices_per_node = comm.size();
  fmt::print("{} ranks ({}), {} thread{} each; exchanges at {:.2f} GB/s and {:.0f} us\n",
             comm.size(), comm.name(), threads, threads == 1 ? "" : "s",
             hw.node_fabric.bandwidth.value / 1e9, hw.node_fabric.latency_seconds.value * 1e6);
  fmt::print("{:24} {:>10} {:>10} {:>7}  {}\n", "plan", "predicted", "measured", "error",
             "exchanges beside compute");
  double worst = 0;
  for (const Runner& runner : runners) {
    const double predicted = runner.predicted(hw), error = predicted / runner.measured() - 1;
    worst = std::max(worst, std::abs(error));
    fmt::print("{:24} {:8.1f}ms {:8.1f}ms {:+6.1f}%  {:.0f}%\n", runner.name(), predicted * 1e3,
               runner.measured() * 1e3, error * 100, runner.hidden() * 100);
  }
  fmt::print("fpdt without overlap takes {:.3f} times the step (predicted {:.3f})\n",
             runners[1].measured() / runners[0].measured(),
             runners[1].predicted(hw) / runners[0].predicted(hw));
  fmt::print("worst error {:.1f} %\n", worst * 100);
  return worst;
}

int run(const Flags& flags) {
  double worst = 0;
  if (launched_by_mpi()) {
    MpiWorld world({});
    worst = run_rank(flags, world.communicator());
  } else {
    run_local_ranks(flags.ranks, [&](Communicator& comm) {
      const double own = run_rank(flags, comm);
      if (comm.rank() == 0) worst = own;
    });
  }
  return worst <= kWorstLimit || flags.no_check ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Predicted against measured step time of plans on many ranks");
  app.add_option("--ranks", flags.ranks, "Ranks, as threads of this process; not under mpirun")
      ->check(CLI::Range(2, 64));
  app.add_option("--rounds", flags.rounds, "Steps measured per plan at least, after a first one");
  app.add_option("--seconds", flags.seconds, "Time to spend on the profile");
  app.add_flag("--no-check", flags.no_check, "Exit status 0 whatever the errors are");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(flags);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
