// Which of two scores a question prefers. Internal to planner/search.
#pragma once

#include <optional>

#include "planner/evaluate/evaluator.h"
#include "planner/search/frame_choice.h"
#include "planner/search/time_limits.h"

namespace longspan {

/// What a search looks for.
struct Wanted {
  Goal goal = Goal::fastest;
  double gap = 0.002;  ///< that is good enough
  TimeLimits time;
  int64_t tokens = 0;  ///< of a sequence, that time.tokens_per_second counts: not what pads it
  bool first = false;  ///< any candidate that fits will do
  std::optional<Candidate> start;  ///< looked at before all others, and around it
  /// The most seconds that a step of `c` may take.
  double most_seconds(const Candidate& c) const {
    return time.most_seconds(tokens, sequences_of_step(c));
  }
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
    return score.overflow == 0 && score.step_seconds <= wanted_.time.step_seconds &&
           score.seconds * wanted_.time.tokens_per_second <= static_cast<double>(wanted_.tokens);
  }
  /// The measure, with what a plan has to gain to be worth its files and its risk; less is better.
  double weighed(const Score& score) const;
  /// By sampled simulation. Where time does not matter it is left out: memory alone is known
  /// sooner.
  Score estimate(const Candidate& c) const;
  /// Laid out; simulated too where time matters.
  Score exact(const Candidate& c) const;

  const Wanted& wanted() const { return wanted_; }
  /// Whether time matters: else it is left out of what is estimated.
  bool needs_time() const { return wanted_.goal == Goal::fastest || wanted_.time.any(); }

 private:
  Score memory_alone(const TierBytes& bytes) const;

  Evaluator& evaluator_;
  const Wanted& wanted_;
};

}  // namespace longspan
