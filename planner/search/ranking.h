// The order in which a question prefers scores. Internal to planner/search.
#pragma once

#include <optional>

#include "planner/evaluate/evaluator.h"
#include "planner/search/frame_choice.h"
#include "planner/search/time_limits.h"

namespace longspan {

/// The target of a search.
struct Wanted {
  Goal goal = Goal::fastest;
  double gap = 0.002;  ///< good enough to stop
  TimeLimits time;
  int64_t tokens = 0;     ///< of a sequence without padding; time.tokens_per_second counts these
  bool thorough = false;  ///< all of the effort, even if little may be gained
  bool first = false;     ///< stop at the first candidate that fits
  std::optional<Candidate> start;  ///< evaluated before all others, with candidates around it
  /// The limit on the seconds of a step of `c`.
  double most_seconds(const Candidate& c) const {
    return time.most_seconds(tokens, sequences_of_step(c));
  }
};

struct Scored {
  Candidate candidate;
  Score score;
  bool exact = false;
};

/// The score in the goal's measure: seconds per sequence, or the used share of a tier.
double measure_of(Goal goal, const Score& score, const TierBytes& limits);

class Ranking {
 public:
  /// Both must outlive this object.
  Ranking(Evaluator& evaluator, const Wanted& wanted) : evaluator_(evaluator), wanted_(wanted) {}

  /// Whether it fits and is within the time limits.
  bool admits(const Score& score) const {
    return score.overflow == 0 &&
           wanted_.time.admit(score.step_seconds, score.seconds, wanted_.tokens);
  }
  /// The measure, increased for plans that use files or are at risk, which have to gain that much;
  /// less is better.
  double weighed(const Score& score) const;
  /// By sampled simulation. Without needs_time() only memory is computed, which is faster.
  Score estimate(const Candidate& c) const;
  /// Laid out, and simulated if needs_time().
  Score exact(const Candidate& c) const;

  const Wanted& wanted() const { return wanted_; }
  /// Whether the goal or a limit depends on time.
  bool needs_time() const { return wanted_.goal == Goal::fastest || wanted_.time.any(); }

 private:
  Score memory_alone(const TierBytes& bytes) const;

  Evaluator& evaluator_;
  const Wanted& wanted_;
};

}  // namespace longspan
