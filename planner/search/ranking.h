// Which of two scores a question prefers. Internal to planner/search.
#pragma once

#include <optional>

#include "planner/evaluate/evaluator.h"
#include "planner/search/frame_choice.h"

namespace longspan {

/// What a search looks for.
struct Wanted {
  Goal goal = Goal::fastest;
  double gap = 0.002;           ///< that is good enough
  double most_seconds = 1e300;  ///< of a step
  double most_seconds_per_sequence = 1e300;
  bool first = false;              ///< any candidate that fits will do
  std::optional<Candidate> start;  ///< with `first`: looked at before all others, and around it
  bool is_timed() const { return most_seconds < 1e300 || most_seconds_per_sequence < 1e300; }
};

struct Scored {
  Candidate candidate;
  Score score;
  bool exact = false;
};

/// In the goal's measure: seconds per sequence, or the share of a tier that is used.
double measure_of(Goal goal, const Score& score, const TierBytes& limits);

class Ranking {
 public:
  /// Both must outlive this object.
  Ranking(Evaluator& evaluator, const Wanted& wanted) : evaluator_(evaluator), wanted_(wanted) {}

  /// It fits, and takes no longer than is wanted.
  bool admits(const Score& score) const {
    return score.overflow == 0 && score.step_seconds <= wanted_.most_seconds &&
           score.seconds <= wanted_.most_seconds_per_sequence;
  }
  /// The measure, with what a plan has to gain to be worth its files and its risk; less is better.
  double weighed(const Score& score) const;
  /// By the fast path. Where time does not matter it is left out: memory alone is known sooner.
  Score estimate(const Candidate& c) const;
  /// Laid out; simulated too where time matters.
  Score exact(const Candidate& c) const;

  const Wanted& wanted() const { return wanted_; }

 private:
  Score memory_alone(const TierBytes& bytes) const;
  bool needs_time() const { return wanted_.goal == Goal::fastest || wanted_.is_timed(); }

  Evaluator& evaluator_;
  const Wanted& wanted_;
};

}  // namespace longspan
