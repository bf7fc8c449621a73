// What lies on a rank of a pipeline, summed. Internal to planner/pipeline.
//
// The sum is over the layers of every kind that a rank has: what their programs hold from first to
// last, what the kind that needs most holds besides while it runs, and what slices in flight leave.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "planner/pipeline/slices.h"
#include "planner/pipeline/stage_programs.h"

namespace longspan {

/// Numbers of layers of every kind: on a stage, or on all stages of a rank.
using LayersByKind = std::vector<int64_t>;

/// Parameters and their states of units of these kinds (0: embedding, 1: a layer, 2: head), one of
/// each. Gradients that are shards in the end are whole until then where there are several
/// microbatches to sum.
std::array<int64_t, kTierCount> unit_states(const StepRequest& stage, const TensorBytes& bytes,
                                            int64_t microbatches, std::initializer_list<int> units);

class RankBytes {
 public:
  /// `slices_of_step` pass a stage in a step, microbatches together.
  RankBytes(StagePrograms& programs, int64_t slices_of_step);

  /// What a layer of each kind keeps of a microbatch on all tiers, as parts of the most that one
  /// keeps.
  std::vector<double> kept_parts() const;

  /// The peak with `held` microbatches of the rank's own layers. `passing`: hidden states that pass
  /// by the rank's layers, in sequences.
  std::array<int64_t, kTierCount> peak(const LayersByKind& layers, StageBoundary boundary,
                                       double held, double passing);

 private:
  struct Kind {
    SlicesInFlight slices;                     // of all layers of its program
    std::array<double, kTierCount> lasting{};  // of a layer: states, and one slice's
    std::array<double, kTierCount> passing{};  // while layers run
  };

  StagePrograms& programs_;
  int64_t microbatches_;  // gradients stay from the first of two to the second
  std::vector<Kind> kinds_;
  std::array<int64_t, kTierCount> vocabulary_{};
  bool cut_;
};

}  // namespace longspan
