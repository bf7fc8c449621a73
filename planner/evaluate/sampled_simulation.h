// Evaluates configurations for a search by sampled programs: tens of thousands per second.
//
// A program is periodic in its layers and in its chunks. A strategy is lowered a few times with few
// layers and chunks, and extrapolated: memory is linear in layers and in chunks, time linear in
// layers and quadratic in chunks. The sampled programs depend only on the strategy's choices, not
// on sizes, so they are built once and then only measured again: op durations and buffer sizes are
// tables apart from the program. Tests compare the results with full simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "planner/cost/cost_model.h"
#include "planner/evaluate/evaluate.h"

namespace longspan {

/// Caches the sampled programs of all strategies. Not thread-safe: one per search thread.
class SampledSimulation {
 public:
  /// `cost` must outlive this object.
  explicit SampledSimulation(const CostModel& cost);
  ~SampledSimulation();

  /// Predicted time, and the largest sum of live buffers per tier. Packing adds a few percent to
  /// that.
  Evaluation evaluate(const StepRequest& request);
  /// If layers differ in time, the first result, of a few layers, may be 20 % off: `worth` decides
  /// from it whether to evaluate larger samples.
  Evaluation evaluate(const StepRequest& request,
                      const std::function<bool(const Evaluation&)>& worth);
  std::array<int64_t, kTierCount> peak_bytes(const StepRequest& request);

  int64_t evaluations() const;  // number of simulations
  /// Work done, in ops lowered, laid out or simulated: a measure of time that is equal on all
  /// machines.
  int64_t work() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
