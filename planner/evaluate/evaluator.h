// How good a candidate is, in three fidelities: by lower bounds, by sampled simulation, exactly.
//
// One Evaluator answers for one model on one machine, for any length, any number of microbatches,
// with and without a pipeline. It keeps what it has measured: durations of ops, sampled programs,
// schedules. Not thread-safe; one per search.
//
// A strategy with a pipeline is evaluated by the programs of its stages (planner/pipeline): its
// demand is that of a stage's layers, times the microbatches, and the time that any schedule needs
// to fill and to drain; its memory is that of one microbatch, and of those the schedule has in
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
  /// `model` and `hw` must outlive this object. `limits`: bytes that a rank may use of each tier.
  /// `dtype`: of the work; none: the one the hardware is meant for.
  Evaluator(const ModelSpec& model, const HardwareProfile& hw, const TierBytes& limits,
            std::optional<DType> dtype = {});
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Whether the schedule takes these numbers, and goes with what is recomputed. True without one.
  bool possible(const Candidate& c);
  /// What a schedule holds with equal stages; none where it does not take these numbers.
  struct InFlight {
    double microbatches = 0;
    bool splits = false;  ///< its backward, so that nothing may be recomputed
  };
  std::optional<InFlight> in_flight(const ParallelLayout& parallel, int64_t microbatches);
  /// Lower bounds on a step: no program of the candidate needs less. REQUIRES: valid, possible().
  Demand demand(const Candidate& c, DemandOf rows = DemandOf::all);
  /// How much longer than its bound on compute a step is likely to be, from the schedule with equal
  /// stages; 1 without a pipeline.
  double expected_ratio(const Candidate& c);

  /// By sampled programs: time within 1 %, bytes are live bytes, which packing adds to.
  Score fast(const Candidate& c);
  /// The bytes alone, without simulating. With a pipeline as fast().
  TierBytes live(const Candidate& c);
  /// The whole program, laid out and simulated. Times are left out where it does not fit.
  Score exact(const Candidate& c);
  /// The memory of exact() alone.
  TierBytes arenas(const Candidate& c);
  /// Whether arenas() are within the limits: sooner known where they are not.
  bool fits(const Candidate& c);

  /// How far bytes exceed the limits, relative and summed over tiers.
  double overflow(const TierBytes& bytes) const;
  /// Whether fit_of() calls these bytes at risk (planner/evaluate/fit.h).
  bool at_risk(const TierBytes& bytes) const;
  const TierBytes& limits() const { return limits_; }
  /// From now on. What was measured does not depend on them.
  void set_limits(const TierBytes& limits) { limits_ = limits; }

  StepRequest request(const Candidate& c) const;
  const HardwareProfile& hardware() const;

  int64_t considered() const;  ///< demands computed
  int64_t simulated() const;   ///< by sampled simulation or exactly
  int64_t work() const;        ///< of the sampled simulation (sampled_simulation.h)
  int64_t laid_out() const;    ///< ops gone through by arenas() and fits()

 private:
  struct State;
  TierBytes limits_;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
