// Slices of sequences on a stage: what each takes besides its own program, and what it leaves.
//
// A slice attends to the slices before it, which its own program knows nothing of; and what the
// layers keep of it waits for the slices behind it, not for its own backward alone. Plain
// arithmetic; safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/cost/cost_model.h"
#include "planner/program/program.h"
#include "planner/schedule/costs.h"

namespace longspan {

/// How much of attention's forward is done again before a backward.
double attention_again(const Strategy& strategy);

/// Seconds that one layer of a rank attends to the slices before, by slice, forward and backward.
struct EarlierSlices {
  std::vector<double> forward, backward;
  double all_forward() const;
  double all_backward() const;
};
/// `slice` is of one of `slices` equal slices, without the pipeline.
EarlierSlices earlier_slices(const StepRequest& slice, int64_t slices, const CostModel& cost);
/// What slices leave on a rank for their backward, and for the slices behind them: keys and values
/// stay on the device, whatever becomes of the rest, and so do the gradients of a whole sequence's.
class SlicesInFlight {
 public:
  explicit SlicesInFlight(int64_t slices) : slices_(slices) {}
  /// `slice` is of one of `slices`, `bytes` of its program.
  SlicesInFlight(const StepRequest& slice, const TensorBytes& bytes, int64_t slices);
  /// A part of what another's layers leave.
  void include(const SlicesInFlight& other, double part);
  /// Bytes that one slice leaves.
  const std::array<int64_t, kTierCount>& kept() const { return kept_; }
  /// Adds to the memory of one slice's program what there is besides where `held` microbatches are
  /// held, which may be a fraction.
  void add(double held, std::array<int64_t, kTierCount>& bytes) const;

 private:
  int64_t slices_;
  std::array<int64_t, kTierCount> kept_{};
  int64_t gradients_ = 0;
};

/// Makes a request of the layers of a stage one of a slice, without the pipeline, and of the run's
/// share of its tokens.
void cut_to_slice(StepRequest& request, const LayerRun& run);

/// ScheduleCosts::sharing_ranks: all of the pipeline's, where they share out attention.
int32_t ranks_that_share(const Pipeline& pipeline);

/// The slices' parts of a microbatch by the model's FLOP, those of windows of ranks where they
/// share out attention; none for whole sequences. REQUIRES: the request names a pipeline whose
/// slices divide the sequence.
std::vector<SliceShare> pipeline_shares(const StepRequest& request);

}  // namespace longspan
