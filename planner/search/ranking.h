// Orders candidates by their scores, for a search's goal and limits. Internal to planner/search.
#pragma once

#include <optional>

#include "planner/evaluate/evaluator.h"
#include "planner/search/frame_choice.h"
#include "planner/search/time_limits.h"

namespace longspan {

/// The target of a search.
struct Wanted {
  Goal goal = Goal::fastest;
  double gap = 0.002;  ///< relative; the search ends when no plan can be better by more
  TimeLimits time;
  int64_t tokens = 0;     ///< of a sequence before padding; time.tokens_per_second counts these
  bool thorough = false;  ///< spend all of the effort, even for a small possible gain
  bool first = false;     ///< stop at the first candidate that fits
  std::optional<Candidate> start;  ///< evaluated before all others, with candidates around it
  /// Upper limit on the step time of `c`, in seconds.
  double most_seconds(const Candidate& c) const {
    return time.most_seconds(tokens, micro_batches_of_step(c));
  }
};

struct Scored {
  Candidate candidate;
  Score score;
  bool exact = false;  ///< from Ranking::exact(), not estimate()
};

/// The score in the goal's measure: seconds per sequence, or the largest used share of
/// the tiers that the goal counts.
double measure_of(Goal goal, const Score& score, const TierBytes& limits);

class Ranking {
 public:
  /// Both must outlive this object.
  Ranking(Evaluator& evaluator, const Wanted& wanted) : evaluator_(evaluator), wanted_(wanted) {}

  /// Whether the plan fits and is within the time limits.
  bool admits(const Score& score) const {
    return score.overflow == 0 &&
           wanted_.time.admit(score.step_seconds, score.seconds, wanted_.tokens);
  }
  /// measure_of(), and for Goal::fastest a penalty: 1 % if the plan uses NVMe, 0.2 % if it is at
  /// risk, and up to 0.1 % each for the device and host memory that it fills. Lower is better.
  double weighed(const Score& score) const;
  /// By sampled simulation. Without needs_time() only memory is computed, which is faster.
  Score estimate(const Candidate& c) const;
  /// By full layout, and by full simulation if needs_time().
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
