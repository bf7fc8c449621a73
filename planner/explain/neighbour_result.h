// The effect of turning one knob of a plan, and the limit that is in the way.
//
// Every neighbour is judged as a plan is simulated (evaluate.h): laid out on all ranks, and timed.
// The limiting factor of a slower neighbour is the resource on which its step gained most seconds.
// A step is what its compute takes, plus what compute waits for on every other stream, so the
// difference of two steps is a sum over resources. For a slower pipeline, or a program too large to
// list, the resource that it needs more of is not known.
//
// Times are seconds of a step. A neighbour with another number of data replicas has another number
// of sequences in a step; its seconds are those for as many sequences as a step of the plan has.
//
// Pipelines that take too long to lay out are estimated by sampled programs of their stages, by how
// much these differ from the plan's own. None is recommended before it is laid out.
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
#include "planner/explain/neighbours.h"
#include "planner/plan/plan.h"
#include "planner/simulate/evaluation.h"

namespace longspan {

/// In order: nothing, what makes a neighbour invalid, what leaves it open, the memories, the
/// resources.
enum class LimitingFactor {
  none,           // it fits, and is as fast as the plan or faster
  heads,          // heads or inner width do not divide among the ranks or groups
  divisibility,   // the sequence, a chunk or a slice does not divide
  rules,          // knobs that exclude each other, or that the schedule does not take
  program_size,   // too many ops to evaluate: nothing else is known of it
  device_memory,  // capacities: it does not fit
  host_memory,
  nvme_capacity,
  compute_time,  // resources: it fits and is slower
  pcie_time,
  network_time,
  storage_time,
  host_time,  // the host's processor
  time,       // an unknown resource
};
inline constexpr int kLimitingFactorCount = static_cast<int>(LimitingFactor::time) + 1;
std::string_view name_of(LimitingFactor);

/// The source of a result's figures: a layout and a simulation, as of a plan; or sampled programs.
enum class Fidelity : uint8_t { laid_out, sampled };

struct NeighbourResult {
  Neighbour neighbour;
  LimitingFactor limiting_factor = LimitingFactor::none;
  /// By how much: "short by 3.2 GiB of host memory", "slower by 4.1 s a step", "64 heads over 128
  /// ranks". Figures by samples are "about".
  std::string reason;
  std::array<int64_t, kTierCount> peak_bytes{};   // 0 where it cannot be laid out
  std::array<int64_t, kTierCount> short_bytes{};  // above the capacities
  double seconds_slower = 0;  // of a step with the plan's sequences; negative: faster
  Fidelity fidelity = Fidelity::laid_out;
  std::string remedy;  // one change that removes the limit; empty if not asked for, or if none does

  /// Exactly one of faster(), as_fast(), slower(), too_large(), invalid() and open() holds.
  bool faster() const { return limiting_factor == LimitingFactor::none && seconds_slower < 0; }
  bool as_fast() const { return limiting_factor == LimitingFactor::none && !faster(); }
  bool slower() const { return limiting_factor >= LimitingFactor::compute_time; }
  bool too_large() const { return limiting_factor >= LimitingFactor::device_memory && !slower(); }
  bool open() const { return limiting_factor == LimitingFactor::program_size; }
  bool invalid() const { return !fits() && !too_large() && !open(); }
  bool fits() const { return limiting_factor == LimitingFactor::none || slower(); }
};

/// Judges the neighbours of one plan. Keeps its evaluator and what it has evaluated; not
/// thread-safe.
class NeighbourJudge {
 public:
  /// Lays out and simulates the plan. `own`: its evaluate(), if the caller has it. REQUIRES: it is
  /// valid; it need not fit.
  explicit NeighbourJudge(const Plan& plan, const std::optional<Evaluation>& own = {});

  /// The results of all neighbours, in their order, without remedies. Predictions do not resolve
  /// differences below half a percent of the step, or one percent for sampled programs and programs
  /// too large to list; such differences count as none.
  std::vector<NeighbourResult> results(const Progress& progress = {}) const;

  /// One change that removes the result's limit, as a part of a sentence:
  /// - memory: one more knob with which it fits, the fastest by its bound; else the capacity it
  ///   needs (advice.h);
  /// - time: how much faster the resource would have to be for an equal step, up to 8 times;
  /// - heads, divisibility, rules, program size: what the check itself advises.
  /// Empty where there is no limit, or where no known change removes it.
  std::string remedy(const NeighbourResult& result) const;

  /// Suggestions for the plan from the judged neighbours, a sentence each. If the plan does not
  /// fit: the knob that makes it fit. Else the knob that makes it fastest, and the knob that frees
  /// most device memory for little or no time. Of neighbours that are laid out. `results`: all
  /// neighbours'.
  std::vector<std::string> suggestions(const std::vector<NeighbourResult>& results) const;

  double seconds() const { return seconds_; }                               // of a step of the plan
  int64_t sequences() const { return batches_ * plan_.model.micro_batch; }  // of that step

 private:
  /// How a strategy is judged: a list of ops; its period, if it is too large to list; the programs
  /// of its stages; samples of these.
  enum class Method { list, period, stages, samples };
  /// Seconds per sequence, by LimitingFactor: compute's own, and its waits for every other
  /// resource.
  using Parts = std::array<double, kLimitingFactorCount>;

  Method method_of(const Strategy& strategy) const;
  NeighbourResult result_of(const Neighbour& neighbour) const;
  bool is_invalid(NeighbourResult& result) const;
  bool is_open(NeighbourResult& result) const;
  void judge_list(NeighbourResult& result) const;
  void judge_exactly(NeighbourResult& result) const;
  void judge_by_samples(NeighbourResult& result) const;
  /// Neighbours to recommend: the fastest; and, if the plan fits, the one with least device memory
  /// of those that cost little time. Null: none, or not worth it.
  struct Recommended {
    const NeighbourResult* fastest = nullptr;
    const NeighbourResult* smallest = nullptr;
  };
  Recommended recommended(const std::vector<NeighbourResult>& results, bool with_samples) const;
  void settle(std::vector<NeighbourResult>& results) const;
  bool sets_shortage(NeighbourResult& result) const;
  bool sets_difference(NeighbourResult& result, double step_seconds) const;
  std::string faster_resource(const NeighbourResult& result) const;
  Candidate candidate_of(const Strategy& strategy) const;

  Plan plan_;
  TierBytes capacity_;
  CostModel cost_;
  std::unique_ptr<Evaluator> evaluator_;  // of plan_'s model and hardware
  mutable std::optional<Score> sampled_;  // the plan's score by samples, once computed
  Method method_;                         // of the plan
  Parts parts_{};                         // of a list
  TierBytes bytes_{};
  double seconds_ = 0;
  int64_t batches_ = 1;  // of the plan's step
};

/// The most informative results, at most `lines` of them, in the order of limiting factors; indices
/// into `results`. They are taken in turn from the results that are faster than the plan and from
/// each limiting factor: the fastest first, or the one that is closest to removing its limit.
std::vector<size_t> most_informative(const std::vector<NeighbourResult>& results, size_t lines);

/// One sentence: whether a neighbour is faster, so that the plan is not the best; and how many
/// neighbours are not, by reason.
std::string summary_of(const std::vector<NeighbourResult>& results);

}  // namespace longspan
