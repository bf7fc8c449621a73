// Shared by the benchmarks of predictions: plans that train one step per call, and the simulator's
// predictions for those steps.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/train/trainer.h"

namespace longspan::bench {

/// Seconds of every op kind.
using KindSeconds = std::array<double, kOpKindCount>;

/// A small Llama for the CPU: two layers of 512, eight heads of 64.
ModelSpec small_llama(int64_t kv_heads);

struct PlanCase {
  std::string name;
  ModelSpec model;
  int64_t sequence = 0;
  Strategy strategy;
  int64_t microbatches = 1;
};

/// Medians over the steps so far, and the plan's prediction by a profile.
struct Outcome {
  double predicted = 0, measured = 0;                // seconds of a step
  double predicted_bubble = 0, measured_bubble = 0;  // of a pipeline
  KindSeconds predicted_kinds{}, measured_kinds{};
  double hidden = 0;  // share of the time of exchanges during which the compute stream is busy
  double others = 0;  // cores that other processes used meanwhile
  double own = 0;     // processor seconds of this process, per core

  double error() const { return predicted / measured - 1; }
  /// The kind that is furthest off in seconds.
  OpKind furthest_off() const;
};

/// Prints a line for every op kind of the plan.
void print_kinds(const Outcome& outcome);

/// One rank of a plan that trains a step per call. Used from one thread.
class PlanSteps {
 public:
  /// Runs a first step to warm up. `comm` is null for one rank. Called by all ranks together.
  PlanSteps(const PlanCase& plan_case, Communicator* comm, int threads);
  /// Called by all ranks together.
  void step();
  const std::string& name() const { return name_; }
  /// REQUIRES: a step was taken.
  Outcome outcome(const HardwareProfile& hw) const;

 private:
  struct Step {
    double seconds = 0, others = 0, own = 0, hidden = 0, bubble = 0;
    KindSeconds kinds{};
  };
  std::string name_;
  int threads_;
  Plan plan_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<Step> steps_;
};

/// The options of a benchmark of many ranks.
struct RankFlags {
  int ranks = 2;
  int rounds = 5;
  double seconds = 60;  // for the profile
  bool kinds = false, no_check = false;
};
/// The main program of such a benchmark: reads its options and runs `body` on each rank, a thread
/// or, under mpirun, a process. `body` returns, on rank 0, whether the predictions are right.
int run_on_ranks(int argc, char** argv, const std::string& description,
                 const std::function<bool(const RankFlags&, Communicator&)>& body);

/// Returns a profile of this machine, measured between steps of the plans, which `step` takes by
/// their index in turns, at least `rounds` each. Both thus cover the same minutes: a virtual
/// machine's speed can change by a third from minute to minute.
HardwareProfile measure_in_turns(double seconds, int rounds, size_t plans,
                                 const std::function<void(size_t)>& step);

/// The same over ranks: the first rank leads, the others follow until it is done, and get no
/// profile. Called by all ranks together.
HardwareProfile measure_with_ranks(double seconds, int rounds, Communicator& comm,
                                   std::vector<PlanSteps>& plans);

}  // namespace longspan::bench
