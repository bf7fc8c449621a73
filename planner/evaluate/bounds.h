// Lower bounds on the time and memory of every program of a configuration, by plain arithmetic: a
// million per second. They select the candidates for sampled simulation.
//
// Time: an op takes at least as long as it takes alone, so a step takes at least as long as its
// busiest stream. No parameter is updated before the norm of all gradients is known, so a step also
// takes at least as long as forward and backward compute plus the slowest stream of the update. Ops
// are counted as program/lowering emits them; omitted ops (zeroing, the reduction of scalars) only
// lower the bound.
//
// Memory: while an op runs, its operands are all on the device, in addition to persistent buffers
// and to what other layers keep for their backward or as gradients. The sum is evaluated at the ops
// where peaks occur: the loss; the backward of the MLP and of attention in the last, the middle and
// the first layer; and the end of the backward, when gradients are complete.
//
// Tests compare both with layouts and simulations of random configurations.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "planner/cost/cost_model.h"
#include "planner/evaluate/demand.h"
#include "planner/program/program.h"

namespace longspan {

/// Lower bounds on the time of a step and on the arenas of a rank.
struct Bound {
  double step_seconds = 0;
  std::array<int64_t, kTierCount> peak_bytes{};
};

/// Lower bounds on the arenas. REQUIRES: the strategy is valid for the length.
std::array<int64_t, kTierCount> least_bytes(const StepRequest& request);

/// Computes bounds of the configurations of one model, length and number of microbatches. Caches
/// the durations of ops. Not thread-safe: one per search.
class Bounds {
 public:
  /// `cost` must outlive this object. The request's strategy is not read.
  Bounds(const StepRequest& request, const CostModel& cost);
  ~Bounds();

  /// REQUIRES: the strategy is valid for the length.
  Bound of(const Strategy& strategy);
  /// The rows from which of() takes the maxima. REQUIRES: as of().
  Demand demand(const Strategy& strategy, DemandOf rows = DemandOf::all);
  /// Sizes of tensors that do not depend on a tile; valid until the next call. REQUIRES: as of().
  const TensorBytes& tensors(const Strategy& strategy);
  int64_t considered() const;  // number of calls of of() and demand()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
