// Many ranks: is the predicted step time right, and do exchanges hide behind compute?
//
//   ranks_bench [--ranks 2] [--rounds 5] [--seconds 60] [--kinds] [--no-check]     ranks as threads
//   mpirun -n 2 ranks_bench ...                                          ranks as processes
//
// Exit status 1 if a prediction is off by more than 25 %. For a machine that does little else, with
// a core for each rank at least. Rounds of the profile and steps of the plans take turns; the
// exchanges are measured at the end, between the ranks themselves.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/processors.h"
#include "engine/profile/profile.h"
#include "plan_steps.h"
#include "planner/strategy/presets.h"

namespace {

using namespace longspan;
using namespace longspan::bench;

constexpr double kWorstLimit = 0.25;
constexpr int64_t kSequence = 2048;

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

// Returns whether the predictions are right, on rank 0.
bool run_rank(const RankFlags& flags, Communicator& comm) {
  const int threads = processor_share(comm.size());
  std::vector<PlanSteps> plans;
  for (const PlanCase& c : cases(comm.size())) plans.emplace_back(c, &comm, threads);
  HardwareProfile hw = measure_with_ranks(flags.seconds, flags.rounds, comm, plans);
  measure_fabric(hw, comm, comm.size());
  if (comm.rank() != 0) return true;
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
  return worst <= kWorstLimit;
}

}  // namespace

int main(int argc, char** argv) {
  return run_on_ranks(argc, argv, "Predicted against measured step time of plans on many ranks",
                      run_rank);
}
