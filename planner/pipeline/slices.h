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

/// Busy seconds of every stream.
using StreamSeconds = std::array<double, kStreamCount>;

/// What attention in one layer of a rank keeps the streams busy with, by slice, beyond as many
/// chunks of a mean slice's program: to earlier slices, and if a slice is longer or shorter, to
/// itself; and copies of keys and values that are not on the device, and of their gradients.
struct EarlierWork {
  std::vector<StreamSeconds> forward, backward;
  std::vector<StreamSeconds> again;  // of a forward that is recomputed for the backward
};

/// The busy seconds of a mean slice's own program in one layer of a rank. Those of compute include
/// its waits.
struct OwnWork {
  StreamSeconds forward{}, backward{};
};

/// The seconds that EarlierWork adds to a slice. Streams run in parallel and slow each other down,
/// so the slice's own work hides copies, too. By slice, or if ranks share attention by rank and
/// slice, twice: where all ranks meet, and where not (planner/pipeline/attention_exchange.h).
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
/// sum over all slices only depends on their number if keys and values are on the device.
EarlierSlices earlier_slices(const StepRequest& slice, const std::vector<int64_t>& chunks,
                             const CostModel& cost, const OwnWork& own);
EarlierWork earlier_work(const StepRequest& slice, const std::vector<int64_t>& chunks,
                         const CostModel& cost);

/// The memory that slices leave on a rank for their backward and for later slices. Keys and values,
/// and their gradients for a whole sequence, stay on their tier for all policies.
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
  /// What its own program leaves.
  const std::array<int64_t, kTierCount>& alone() const { return alone_; }
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
  std::array<int64_t, kTierCount> kept_{}, alone_{};
  // What one slice's program puts elsewhere than it is with the others: keys and values, which its
  // policy would store.
  std::array<int64_t, kTierCount> moved_{};
  int kv_tier_ = 0;
  // Gradients of keys and values: of all slices, without one layer of one; of earlier slices.
  int64_t gradients_ = 0, earlier_gradients_ = 0;
  // With keys and values elsewhere: those that one slice's program has on the device while a layer
  // runs, and parts of other slices that are copied ahead.
  int64_t running_ = 0, ahead_ = 0;
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
