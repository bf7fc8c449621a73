// What a configuration costs: the way a search can afford, tens of thousands a second.
//
// A program is periodic in its layers and in its chunks. So a strategy is lowered a few times for a
// sampled model (two and three layers, a few chunks) and extrapolated: memory is linear in layers
// and in chunks, time linear in layers and quadratic in chunks. The sampled programs depend only
// on the strategy's choices, not on any size, so they are built once and then only re-measured: op
// durations and buffer sizes are tables besides the program. Tests hold all of it to the full
// simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "planner/cost/cost_model.h"
#include "planner/evaluate/evaluate.h"

namespace longspan {

/// Keeps the sampled programs of the strategies it has met. Not thread-safe: one per search
/// thread.
class SampledSimulation {
 public:
  /// `cost` must outlive this object.
  explicit SampledSimulation(const CostModel& cost);
  ~SampledSimulation();

  /// Predicted time, and the largest sum of live buffers per tier: the arena is that plus what
  /// packing loses (a few percent).
  Evaluation evaluate(const StepRequest& request);
  /// Where layers differ from each other in time, a first look at a few of them may be 20 % off:
  /// `worth` says of it whether to look at more.
  Evaluation evaluate(const StepRequest& request,
                      const std::function<bool(const Evaluation&)>& worth);
  std::array<int64_t, kTierCount> peak_bytes(const StepRequest& request);

  int64_t evaluations() const;  // simulated so far
  /// What was done so far, in ops that were lowered, laid out or simulated: a measure of time that
  /// is the same on every machine.
  int64_t work() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
