// Slices of sequences on a stage: the time of each beyond its own program, and the memory that it
// leaves.
//
// A slice attends to earlier slices, which its own program does not contain; and its saved tensors
// are kept for later slices, not only for its own backward. Plain arithmetic; safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/cost/cost_model.h"
#include "planner/program/program.h"
#include "planner/schedule/costs.h"

namespace longspan {

/// The fraction of attention's forward that is recomputed for the backward.
double attention_again(const Strategy& strategy);

/// Seconds of attention in one layer of a rank, by slice, beyond those of as many chunks of a mean
/// slice's program: to earlier slices, and if a slice is longer or shorter, to itself. By slice, or
/// if ranks share attention by rank and slice, twice: where all ranks meet, and where not
/// (planner/pipeline/attention_exchange.h).
struct EarlierSlices {
  std::vector<double> forward, backward;
  std::vector<double> again;  // of a forward that is recomputed for the backward
  int64_t ranks = 0;          // that share
  /// The sums over slices, the mean of ranks where all meet.
  double all_forward() const;
  double all_backward() const;
  double all_again() const;
  double all(const std::vector<double>& seconds) const;
};
/// `slice`: the request of a mean slice, without the pipeline; `chunks`: those of every slice. The
/// sum over all slices only depends on their number.
EarlierSlices earlier_slices(const StepRequest& slice, const std::vector<int64_t>& chunks,
                             const CostModel& cost);
/// The memory that slices leave on a rank for their backward and for later slices. Keys and values,
/// and their gradients for a whole sequence, stay on the device for all policies.
class SlicesInFlight {
 public:
  explicit SlicesInFlight(double slices) : slices_(slices) {}
  /// `slice`: the request of one slice; `slices`: as many of it have the tokens of a sequence;
  /// `bytes`: of its program.
  SlicesInFlight(const StepRequest& slice, const TensorBytes& bytes, double slices);
  /// Adds `part` of another's memory.
  void include(const SlicesInFlight& other, double part);
  /// Bytes that one slice leaves.
  const std::array<int64_t, kTierCount>& kept() const { return kept_; }
  /// Adds to `bytes`, the memory of one slice's program, the memory of the other slices of `held`
  /// microbatches, which may be a fraction.
  void add(double held, std::array<int64_t, kTierCount>& bytes) const;
  /// As add(), but no more than a layout needs if this slice is the last of its sequence.
  /// `gradients`: the part of the layers that have gradients of earlier keys and values. They are
  /// there at this slice's backward once its saved tensors are gone, or at the backward of the
  /// slice before; `next`: the length of that, in units of this one's. The result is linear in the
  /// bytes that a slice leaves, as demands of knobs add up.
  void add_least(double held, double gradients, double next,
                 std::array<int64_t, kTierCount>& bytes) const;

 private:
  double slices_;
  std::array<int64_t, kTierCount> kept_{};
  // What one slice's program puts elsewhere than it is with the others: keys and values, which its
  // policy would store.
  std::array<int64_t, kTierCount> moved_{};
  // Gradients of keys and values: of all slices, without one layer of one; of this slice.
  int64_t gradients_ = 0, own_gradients_ = 0;
};

/// Converts the request of a stage's layers to that of a slice, without the pipeline, with the
/// run's share of its tokens.
void cut_to_slice(StepRequest& request, const LayerRun& run);

/// ScheduleCosts::sharing_ranks: all ranks of the pipeline if they share attention; else 0.
int32_t ranks_that_share(const Pipeline& pipeline);

/// ScheduleCosts::shares by the model's FLOPs; empty for whole sequences. REQUIRES: the request has
/// a pipeline whose slices divide the sequence.
std::vector<SliceShare> pipeline_shares(const StepRequest& request);

}  // namespace longspan
