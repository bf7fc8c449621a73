// One frame of the search as a choice of values for its groups of knobs.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/evaluate/evaluator.h"
#include "planner/search/relaxation.h"
#include "planner/search/space.h"

namespace longspan {

/// What the best candidate is: the fastest per sequence, that of least memory on one tier, or that
/// with most room on the fullest tier.
enum class Goal : uint8_t { fastest, least_device, least_host, roomiest };

using Room = std::array<double, kTierCount>;

/// A candidate with what the relaxation says of it, in the goal's measure.
struct Rounded {
  Candidate candidate;
  double bound = 0;
};

/// The room after a candidate has turned out to need `bytes`: less on every tier that is short, by
/// what was missing and a little more.
Room tightened(Room room, const TierBytes& bytes, const TierBytes& limits);

class FrameChoice {
 public:
  /// Computes the demand of every value. With DemandOf::bytes no question may be about time.
  /// REQUIRES: evaluator.possible(frame).
  FrameChoice(Evaluator& evaluator, const Candidate& frame, const SpaceOptions& options,
              DemandOf rows = DemandOf::all);

  /// The mixture that is best for the goal: its objective is a lower bound for all candidates of
  /// the frame (seconds per sequence, or a share of a tier); overflow > 0: none fits.
  /// `most_seconds`: per step; infinite: any.
  Mixture bound(Goal goal, double most_seconds) const;
  /// The same by the seconds that are expected, which no bound allows for: streams of one phase
  /// overlap, phases do not. `room`: the share of every tier that may be used; 0 of nvme: no value
  /// that puts something there.
  Mixture expect(Goal goal, const Room& room, double most_seconds) const;

  /// Candidates near the best mixture, the best first by their own bounds.
  std::vector<Rounded> round(Goal goal, const Room& room, double most_seconds) const;

  /// The best rounding for each of the `most` most promising values of one group.
  std::vector<Rounded> round_each(KnobGroup group, Goal goal, const Room& room, double most_seconds,
                                  size_t most) const;

  const Candidate& frame() const { return frame_; }

 private:
  void round(const RelaxationGoal& goal, const std::vector<uint64_t>& allowed, int& solves,
             std::vector<Rounded>& found) const;
  RelaxationGoal relaxation_goal(Goal goal, const Room& room, double most_seconds,
                                 bool expected) const;
  std::vector<uint64_t> allowed_with(const Room& room) const;
  /// The value whose mixtures with this one stand for a policy of a part of the layers: the same
  /// policy of fewer layers, at last "keep"; -1: none.
  int fewer(size_t group, size_t value) const;
  /// Whether the shares of a group are one value or such a mixture.
  bool stands(size_t group, const std::vector<double>& shares) const;
  /// Values allowed instead of a mixture that is not valid, the most taken first.
  std::vector<uint64_t> branches(size_t group, const std::vector<double>& shares) const;
  Candidate candidate_of(const Mixture& mixture) const;

  Candidate frame_;
  int64_t layers_;  // of a stage
  GroupValues values_;
  std::vector<uint64_t> without_nvme_;  // the values of every group that use no file
  Relaxation relaxation_;
};

}  // namespace longspan
