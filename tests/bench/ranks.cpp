// Many ranks: is the predicted step time right, and do exchanges hide behind compute?
//
//   ranks_bench [--ranks 2] [--rounds 5] [--seconds 60] [--kinds] [--no-check]     ranks as threads
//   mpirun -n 2 ranks_bench ...                                          ranks as processes
//
// Exit status 1 if a prediction is off by more than 25 %. For a machine that does little else, with
// a core for each rank at least. Rounds of the profile and steps of the plans take turns; the
// exchanges are measured at the end, between the ranks themselves.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/processors.h"
#include "engine/comm/local.h"
#include "engine/comm/mpi.h"
#include "engine/profile/profile.h"
#include "plan_steps.h"
#include "planner/strategy/presets.h"

namespace {

using namespace longspan;
using namespace longspan::bench;

constexpr double kWorstLimit = 0.25;
constexpr int64_t kSequence = 2048;

struct Flags {
  int ranks = 2;
  int rounds = 5;
  double seconds = 60;  // for the profile
  bool kinds = false, no_check = false;
};

std::vector<PlanCase> cases(int64_t ranks) {
  const ModelSpec model = small_llama(4);
  const auto preset = [&](const char* name, const char* base, const ParallelLayout& parallel) {
    return PlanCase{name, model, kSequence,
                    make_preset(base, model, kSequence, kSequence / 4, parallel)};
  };
  const ParallelLayout ulysses{.ulysses = ranks, .zero = 3};
  ParallelLayout waits = ulysses;
  waits.overlap = false;
  return {preset("fpdt, overlapped", "fpdt", ulysses),
          preset("fpdt, not overlapped", "fpdt", waits),
          preset("ulysses, ZeRO 3", "ulysses", ulysses),
          preset("alst, ZeRO 1", "alst", {.ulysses = ranks, .zero = 1}),
          preset("upipe, ZeRO 3", "upipe", ulysses),
          preset("ring, ZeRO 0", "ring", {.ring = ranks}),
          preset("data, ZeRO 0", "checkpoint", {.data = ranks}),
          preset("data, ZeRO 3", "checkpoint", {.data = ranks, .zero = 3}),
          preset("tensor", "megatron-sp", {.tensor = ranks})};
}

// Returns the worst error, on rank 0.
double run_rank(const Flags& flags, Communicator& comm) {
  const int threads = processor_share(comm.size());
  std::vector<PlanSteps> plans;
  for (const PlanCase& c : cases(comm.size())) plans.emplace_back(c, &comm, threads);
  HardwareProfile hw = measure_with_ranks(flags.seconds, flags.rounds, comm, plans);
  measure_fabric(hw, comm, comm.size());
  if (comm.rank() != 0) return 0;
  hw.devices_per_node = comm.size();
  fmt::print("{} ranks ({}), {} thread{} each; exchanges at {:.2f} GB/s and {:.0f} us\n",
             comm.size(), comm.name(), threads, threads == 1 ? "" : "s",
             hw.node_fabric.bandwidth.value / 1e9, hw.node_fabric.latency_seconds.value * 1e6);
  fmt::print("{:24} {:>10} {:>10} {:>7}  {}\n", "plan", "predicted", "measured", "error",
             "exchanges during compute");
  std::vector<Outcome> outcomes;
  double worst = 0;
  for (const PlanSteps& plan : plans) {
    const Outcome& o = outcomes.emplace_back(plan.outcome(hw));
    worst = std::max(worst, std::abs(o.error()));
    fmt::print("{:24} {:8.1f}ms {:8.1f}ms {:+6.1f}%  {:.0f}%\n", plan.name(), o.predicted * 1e3,
               o.measured * 1e3, o.error() * 100, o.hidden * 100);
    if (flags.kinds) print_kinds(o);
  }
  fmt::print("fpdt without overlap takes {:.3f} times the step (predicted {:.3f})\n",
             outcomes[1].measured / outcomes[0].measured,
             outcomes[1].predicted / outcomes[0].predicted);
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
  app.add_option("--rounds", flags.rounds, "Steps measured per plan at least, after a first one")
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Time to spend on the profile")->capture_default_str();
  app.add_flag("--kinds", flags.kinds, "Print every op kind");
  app.add_flag("--no-check", flags.no_check, "Exit status 0 whatever the errors are");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(flags);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
