// The choice of values for the groups of knobs in one frame. Internal to planner/search.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/evaluate/evaluator.h"
#include "planner/search/relaxation.h"
#include "planner/search/space.h"

namespace longspan {

/// The criterion for the best candidate: the least time per sequence, the least memory on one tier,
/// or the most room on the fullest tier.
enum class Goal : uint8_t { fastest, least_device, least_host, roomiest };

using Room = std::array<double, kTierCount>;

/// A candidate with the bound that the relaxation gives it, in the goal's measure.
struct Rounded {
  Candidate candidate;
  double bound = 0;
};

/// The room to leave after a candidate has turned out to need `bytes`: every tier that is short is
/// reduced by the missing part and a little more.
Room tightened(Room room, const TierBytes& bytes, const TierBytes& limits);

class FrameChoice {
 public:
  /// Computes the demand of every value. With DemandOf::bytes, goals and limits on time are not
  /// allowed. REQUIRES: evaluator.possible(frame).
  FrameChoice(Evaluator& evaluator, const Candidate& frame, const SpaceOptions& options,
              DemandOf rows = DemandOf::all);

  /// The best mixture for the goal. Its objective is a lower bound for all candidates of the frame
  /// (seconds per sequence, or a share of a tier); overflow > 0: none fits. `most_seconds`: limit
  /// per step; infinite: none.
  Mixture bound(Goal goal, double most_seconds) const;
  /// The best mixture by expected seconds, which are no bound: streams of one phase overlap, phases
  /// do not. `room`: the share of every tier that may be used; with 0 of nvme, values that use a
  /// file are excluded.
  Mixture expect(Goal goal, const Room& room, double most_seconds) const;

  /// Candidates near the best mixture, by their own bounds, best first.
  std::vector<Rounded> round(Goal goal, const Room& room, double most_seconds) const;

  /// The best rounding for each of the `most` most promising values of one group. A value that
  /// does not fit `room` may take all memory.
  std::vector<Rounded> round_each(KnobGroup group, Goal goal, const Room& room, double most_seconds,
                                  size_t most) const;

  const Candidate& frame() const { return frame_; }

 private:
  void round(const RelaxationGoal& goal, const std::vector<uint64_t>& allowed, int& solves,
             std::vector<Rounded>& found) const;
  RelaxationGoal relaxation_goal(Goal goal, const Room& room, double most_seconds,
                                 bool expected) const;
  std::vector<uint64_t> allowed_with(const Room& room) const;
  /// The value of the states that differs from this one in optimizer states on the device. -1:
  /// there is none, or they are one of two.
  int all_updated_here(size_t value) const;
  /// The value that, mixed with this one, stands for a value of a part of the layers: the same
  /// policy of fewer layers, at the end "keep"; optimizer states on the device. -1: there is no
  /// such value.
  int fewer(size_t group, size_t value) const;
  /// Whether the shares of a group are one value, or a mixture as fewer() describes.
  bool stands(size_t group, const std::vector<double>& shares) const;
  /// Masks of values to allow instead of a mixture that is not valid, largest share first.
  std::vector<uint64_t> branches(size_t group, const std::vector<double>& shares) const;
  Candidate candidate_of(const Mixture& mixture) const;

  Candidate frame_;
  int64_t layers_;       // layers of a stage
  bool divides_states_;  // optimizer states of some layers may be on the device, of others not
  GroupValues values_;
  std::vector<uint64_t> without_nvme_;  // mask of the values of every group that use no file
  Relaxation relaxation_;
};

}  // namespace longspan
