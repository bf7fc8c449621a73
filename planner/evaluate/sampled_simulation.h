// Evaluates configurations for a search by sampled programs: tens of thousands per second.
//
// A program is periodic in its layers and in its chunks. A strategy is lowered a few times with few
// layers and chunks, and extrapolated: memory is linear in layers and in chunks, time linear in
// layers and quadratic in chunks. The sampled programs depend only on the strategy's choices, not
// on sizes, so they are built once and their costs computed again for other sizes: op durations and
// buffer sizes are kept in tables outside the program. Tests compare the results with full
// simulation.
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
  /// As above, in two passes if layers differ in time. The first samples few layers and may be 20 %
  /// off; the second runs only if `worth` returns true for its result.
  Evaluation evaluate(const StepRequest& request,
                      const std::function<bool(const Evaluation&)>& worth);
  /// The largest sum of live buffers per tier.
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
