// Evaluates candidates at three levels of accuracy: lower bounds, sampled simulation, exact.
//
// An Evaluator serves one model on one machine, for any length and number of microbatches, with and
// without a pipeline. It caches durations of ops, sampled programs and schedules. Not thread-safe;
// one per search.
//
// A strategy with a pipeline is evaluated by the programs of its stages (planner/pipeline). Its
// demand is that of a stage's layers times the microbatches, plus the time that any schedule needs
// to fill and to drain. Its memory is that of one microbatch, plus those that the schedule has in
// flight. A model whose layers differ is evaluated the same way, even on one stage.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "hwprofiles/hardware_profile.h"
#include "planner/evaluate/candidate.h"
#include "planner/program/layout.h"

namespace longspan {

class Evaluator {
 public:
  /// `model` and `hw` must outlive this object. `limits`: bytes of each tier that a rank may use.
  /// `dtype`: compute precision; none: default_dtype(hw).
  Evaluator(const ModelSpec& model, const HardwareProfile& hw, const TierBytes& limits,
            std::optional<DType> dtype = {});
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Whether the schedule takes these numbers, with equal stages. True without a pipeline.
  bool takes(const Candidate& c);
  /// Whether a search considers it: takes(), and nothing is recomputed if the backward is split.
  bool possible(const Candidate& c);
  /// The microbatches that a schedule has in flight with equal stages; none if it does not take
  /// these numbers.
  struct InFlight {
    double microbatches = 0;
    bool splits = false;    ///< it splits the backward, and the search recomputes nothing
    bool offloads = false;  ///< it takes memory of the host instead
  };
  std::optional<InFlight> in_flight(const ParallelLayout& parallel, int64_t microbatches);
  /// Lower bounds on a step: no program of the candidate needs less, except in memory if the
  /// backward is split and something recomputed. REQUIRES: valid, takes().
  Demand demand(const Candidate& c, DemandOf rows = DemandOf::all);
  /// Expected ratio of a step's time to its compute bound, from the schedule with equal stages; 1
  /// without a pipeline.
  double expected_ratio(const Candidate& c);

  /// By sampled programs: time within 1 %; bytes are live bytes, without the cost of packing.
  Score fast(const Candidate& c);
  /// The bytes of fast() alone, without simulation. With a pipeline the same work as fast().
  TierBytes live(const Candidate& c);
  /// The whole program, laid out and simulated. Without times if it does not fit.
  Score exact(const Candidate& c);
  /// The memory of exact() alone.
  TierBytes arenas(const Candidate& c);
  /// Whether arenas() are within the limits. Faster than arenas() if they are not.
  bool fits(const Candidate& c);

  /// The relative excess over the limits, summed over tiers.
  double overflow(const TierBytes& bytes) const;
  /// Whether fit_of() calls these bytes at risk (planner/evaluate/fit.h).
  bool at_risk(const TierBytes& bytes) const;
  const TierBytes& limits() const { return limits_; }
  /// Applies to later calls; cached results do not depend on limits.
  void set_limits(const TierBytes& limits) { limits_ = limits; }

  StepRequest request(const Candidate& c) const;
  const HardwareProfile& hardware() const;

  int64_t considered() const;  ///< demands computed
  int64_t simulated() const;   ///< simulations, sampled or exact
  int64_t work() const;        ///< of the sampled simulation (sampled_simulation.h)
  int64_t laid_out() const;    ///< ops laid out by arenas() and fits()

 private:
  struct State;
  TierBytes limits_;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
