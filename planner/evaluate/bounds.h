// Lower bounds on time and memory of every program of a configuration, in plain arithmetic: a
// million a second. They decide which candidates the sampled simulation looks at.
//
// Time: every op of a stream takes at least as long as alone, so a step takes at least as long as
// its busiest stream; and no parameter is updated before the norm of all gradients is known, so at
// least as long as forward and backward compute and then the slowest stream of the update. How
// often each op runs is counted as program/lowering emits them; ops that are left out (zeroing, the
// reduction of scalars) only make the bound lower.
//
// Memory: the operands of an op are all on the device while it runs, besides what lies there from
// step to step and what other layers have left for their backward or as gradients. That sum is
// taken at a few ops where peaks are: the loss, and the backward of the MLP and of attention in the
// last layer and in the first; and at the end of backward, when gradients are complete.
//
// Tests hold both to what is laid out and simulated, for random configurations.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "planner/cost/cost_model.h"
#include "planner/evaluate/demand.h"
#include "planner/program/program.h"

namespace longspan {

/// What a step takes at least, and the arenas of a rank.
struct Bound {
  double step_seconds = 0;
  std::array<int64_t, kTierCount> peak_bytes{};
};

/// At least these arenas. REQUIRES: the strategy is valid for the length.
std::array<int64_t, kTierCount> least_bytes(const StepRequest& request);

/// Bounds of the configurations of one model, length and number of microbatches. Keeps the
/// durations of ops by what they depend on. Not thread-safe: one per search.
class Bounds {
 public:
  /// `cost` must outlive this object. Of the request's strategy nothing is read.
  Bounds(const StepRequest& request, const CostModel& cost);
  ~Bounds();

  /// REQUIRES: the strategy is valid for the length.
  Bound of(const Strategy& strategy);
  /// The rows whose largest of() takes, before they become one figure each. REQUIRES: as of().
  Demand demand(const Strategy& strategy, DemandOf rows = DemandOf::all);
  /// Sizes of what does not depend on a tile. REQUIRES: as of(). Until the next call.
  const TensorBytes& tensors(const Strategy& strategy);
  int64_t considered() const;  // calls of of() and demand() so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
