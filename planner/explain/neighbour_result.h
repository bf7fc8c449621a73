// What becomes of a plan when one knob is turned, and which limit is in the way.
//
// Every neighbour is judged by full simulation: laid out on all ranks and, where it fits,
// simulated. A neighbour that would be slower is rejected by the resource that its step gained most
// seconds on: a step is what its compute takes, plus what compute waits for on every other stream,
// so the difference of two steps is a sum over resources. Steps of different numbers of data
// replicas are compared per sequence.
//
// Pipelines, and models whose layers differ, are judged by sampled programs of their stages; of
// what is too large to list only its period is gone through. Which resource a slower one of these
// needs more of is not known.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "planner/cost/cost_model.h"
#include "planner/evaluate/evaluator.h"
#include "planner/explain/advice.h"
#include "planner/explain/neighbours.h"
#include "planner/plan/plan.h"

namespace longspan {

enum class LimitingFactor {
  none,           // it fits, and is as fast as the plan or faster
  heads,          // they, or the inner width, do not divide among the ranks or groups
  divisibility,   // the sequence, a chunk or a slice cannot
  rules,          // knobs that do not go together, or more ops than are looked at
  device_memory,  // capacities: it does not fit
  host_memory,
  nvme_capacity,
  compute_time,  // resources: it fits and is slower
  pcie_time,
  network_time,
  storage_time,
  host_time,  // of the host's processor
  time,       // of a resource that is not known
};
inline constexpr int kLimitingFactorCount = static_cast<int>(LimitingFactor::time) + 1;
std::string_view name_of(LimitingFactor);

struct NeighbourResult {
  Neighbour neighbour;
  LimitingFactor limiting_factor = LimitingFactor::none;
  std::string reason;  // by how much: "short by 3.2 GiB", "4.1 s slower", "64 heads over 128 ranks"
  std::array<int64_t, kTierCount> peak_bytes{};   // 0 where it cannot be laid out
  std::array<int64_t, kTierCount> short_bytes{};  // beyond the capacities
  double seconds_slower = 0;                      // per sequence; negative: faster
  Fidelity fidelity = Fidelity::laid_out;         // sampled: time within 1 %, bytes before packing
  std::string remedy;  // one change that removes the limit; empty if not asked for, or if none does

  bool fits() const {
    return limiting_factor == LimitingFactor::none ||
           limiting_factor >= LimitingFactor::compute_time;
  }
  bool faster() const { return limiting_factor == LimitingFactor::none && seconds_slower < 0; }
};

/// Judges the neighbours of one plan. Keeps what that takes; not thread-safe.
class NeighbourJudge {
 public:
  /// Lays out and simulates the plan, or samples of it. REQUIRES: it is valid; it need not fit.
  explicit NeighbourJudge(const Plan& plan);

  /// The results of all neighbours, in their order, without remedies. A difference of less than
  /// half a percent of the step counts as none, by sampled programs of one percent: no prediction
  /// tells that apart.
  std::vector<NeighbourResult> results(const Progress& progress = {}) const;

  /// One change that removes the result's limit, as a part of a sentence:
  /// - memory: one more knob with which it fits, the fastest by its bound; else the capacity it
  ///   needs (advice.h);
  /// - time: how much faster the resource would have to be for it to be even, up to 8 times;
  /// - heads, divisibility, rules: what the check itself says to try.
  /// Empty where nothing is in the way, or nothing that is known of helps.
  std::string remedy(const NeighbourResult& result) const;

  /// What would help the plan, of what was judged: the knob that makes it fit, where it does not;
  /// else the one that makes it fastest, and the one that frees most device memory for little or no
  /// time. A sentence each. `results`: all neighbours'.
  std::vector<std::string> suggestions(const std::vector<NeighbourResult>& results) const;

  double seconds() const { return seconds_; }  // of the plan, per sequence

 private:
  /// Compute's own seconds, and those it waits for every resource; by LimitingFactor, per sequence.
  using Parts = std::array<double, kLimitingFactorCount>;

  NeighbourResult result_of(const Neighbour& neighbour) const;
  bool is_invalid(NeighbourResult& result) const;
  void judge_exactly(NeighbourResult& result, const Candidate& changed) const;
  bool is_large(const Strategy& strategy) const;
  Score sampled(const Candidate& c) const;
  void judge_sampled(NeighbourResult& result, const Candidate& changed) const;
  bool sets_shortage(NeighbourResult& result) const;
  bool sets_difference(NeighbourResult& result, double slower) const;
  std::string faster_resource(const NeighbourResult& result) const;
  Candidate candidate_of(const Strategy& strategy) const;

  Plan plan_;
  TierBytes capacity_;
  CostModel cost_;
  std::unique_ptr<Evaluator> evaluator_;  // of plan_'s model and hardware
  mutable std::optional<Score> sampled_;  // the plan's, once asked for
  bool large_;
  Parts parts_{};
  TierBytes bytes_{};
  double seconds_ = 0;
};

/// The results that say most, at most `lines` of them and in the order of limiting factors: of
/// those that are faster than the plan and of every limiting factor in turn the fastest, or the one
/// that is closest to being lifted. Indices into `results`.
std::vector<size_t> most_informative(const std::vector<NeighbourResult>& results, size_t lines);

/// One sentence: whether a neighbour is faster, and so the plan not the best; how many are not, and
/// why.
std::string summary_of(const std::vector<NeighbourResult>& results);

}  // namespace longspan
