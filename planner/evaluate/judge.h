// How good a configuration is: by bounds, by a guess from them, by the fast path, and the exact
// way.
//
// Internal to planner/search. One Judge per question; it keeps what it has learned of packing and
// what it has laid out. Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/evaluate/bounds.h"
#include "planner/evaluate/budget.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/fast_path.h"
#include "planner/search/search.h"

namespace longspan {

struct Score {
  double overflow = 0;  // how far beyond the capacities, relative; 0: fits
  double step_seconds = 0;
  double seconds = 0;  // per sequence: data replicas train several at once
  TierBytes bytes{};
  bool better_than(const Score& other, Objective objective) const;
};

struct Candidate {
  Strategy strategy;
  Score score;
};

/// Of a question, but for its strategy.
StepRequest request_of(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence,
                       int64_t micro_batches);
Score score_of(const Strategy& strategy, double overflow, const Evaluation& evaluation);
/// Without its prediction.
Plan plan_of(const StepRequest& request, const HardwareProfile& hw);

class Judge {
 public:
  /// `hw` must outlive this object.
  Judge(const ModelSpec& model, const HardwareProfile& hw, int64_t sequence, int64_t micro_batches);
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;

  /// At least this, in plain arithmetic.
  Score bound(const Strategy& strategy);
  /// Of the tier that has least room, the share that is filled at least.
  double filled(const Strategy& strategy);
  /// A guess that ranks what has not been simulated.
  Score guess(const Strategy& strategy);
  /// By the fast path; more roughly where something better was scored before.
  Score score(const Strategy& strategy);
  /// The exact way. Where that does not fit although the fast path said so, the loss in packing is
  /// remembered, so that the next round leaves room for it.
  Score exact(const Strategy& strategy);
  /// The exact way, but time alone: seconds per sequence.
  double exact_seconds(const Strategy& strategy);

  /// Without its prediction.
  Plan plan(const Strategy& strategy) const;
  const TierBytes& limits() const { return budget_.limits(); }
  int64_t considered() const { return bounds_.considered(); }
  int64_t evaluations() const { return fast_.evaluations(); }

 private:
  const HardwareProfile& hw_;
  StepRequest request_;
  CostModel cost_;
  FastPath fast_;
  Bounds bounds_;
  Budget budget_;
  double least_seconds_ = 1e300;  // per sequence, of what fitted by the fast path
  std::vector<std::pair<Strategy, Evaluation>> exact_;  // known so far
};

}  // namespace longspan
