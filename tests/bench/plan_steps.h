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

/// Medians over the steps so far, next to what a profile predicts for the plan.
struct Outcome {
  double predicted = 0, measured = 0;  // seconds of a step
  KindSeconds predicted_kinds{}, measured_kinds{};
  double hidden = 0;  // share of the time in exchanges with the compute stream busy
  double others = 0;  // cores that other processes used meanwhile
  double own = 0;     // processor seconds of this process, per core

  double error() const { return predicted / measured - 1; }
  /// The kind that is furthest off in seconds.
  OpKind furthest_off() const;
};

/// A line for every kind that the plan has.
void print_kinds(const Outcome& outcome);

/// One rank's part in a plan that trains a step per call. Used from one thread.
class PlanSteps {
 public:
  /// Takes a first step, to warm up. A null `comm` is one rank alone. Called by all ranks together.
  PlanSteps(const PlanCase& plan_case, Communicator* comm, int threads);
  /// Called by all ranks together.
  void step();
  const std::string& name() const { return name_; }
  /// REQUIRES: a step was taken.
  Outcome outcome(const HardwareProfile& hw) const;

 private:
  struct Step {
    double seconds = 0, others = 0, own = 0, hidden = 0;
    KindSeconds kinds{};
  };
  std::string name_;
  int threads_;
  Plan plan_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<Step> steps_;
};

/// A profile of this machine, measured between rounds of `round`, of which there are at least
/// `rounds`. Both are medians over the same minutes: a virtual machine changes its speed by a third
/// from one minute to the next.
HardwareProfile measure_in_turns(double seconds, int rounds, const std::function<void()>& round);

}  // namespace longspan::bench
