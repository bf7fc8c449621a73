// The memory of a rank of a pipeline, as a sum. Internal to planner/pipeline.
//
// The sum consists of the lasting memory of all layers of a rank, the temporary memory of the kind
// that needs most while it runs, and the saved tensors of slices in flight.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "planner/pipeline/slices.h"
#include "planner/pipeline/stage_programs.h"

namespace longspan {

/// Bytes of the states of one unit of each of these kinds (0: embedding, 1: a layer, 2: head), the
/// mean of all layers. With several microbatches, gradients that ZeRO stage 1 shards at the end are
/// counted whole.
std::array<double, kTierCount> unit_states(const StepRequest& stage, const TensorBytes& bytes,
                                           int64_t microbatches, std::initializer_list<int> units);

/// The most microbatches that a rank holds, by the bytes that one keeps: in flight; of these what
/// copies to the host leave where it was, and what they have moved there.
struct Held {
  double in_flight = 0, left = 0, moved = 0;
};

class RankBytes {
 public:
  /// `slices_of_step`: slices of all microbatches that pass a stage in a step.
  RankBytes(StagePrograms& programs, int64_t slices_of_step);

  /// Bytes on all tiers that a layer of each kind keeps of a microbatch, relative to the kind that
  /// keeps most.
  std::vector<double> kept_parts() const;

  /// Bytes that a layer of each kind keeps of a microbatch from I to W, relative to those from F to
  /// I.
  std::vector<double> parts_for_weights() const;

  /// What actions leave or move of a microbatch: by kind, relative to all that a layer keeps, what
  /// OFFLOAD moves, and the keys and values of slices; and a stage's input, relative to what a
  /// layer of the kind that keeps most keeps.
  struct Parts {
    std::vector<double> movable, keys;
    double input = 0;
  };
  Parts parts() const;

  /// The peak with microbatches in flight on the rank's own layers. `passing`: hidden states that
  /// pass by the rank's layers, in sequences.
  std::array<int64_t, kTierCount> peak(const LayersByKind& layers, StageBoundary boundary,
                                       const Held& held, double passing);

 private:
  struct Kind {
    SlicesInFlight slices;                     // of all layers of its program
    std::array<double, kTierCount> lasting{};  // of a layer: states, and one slice's saved tensors
    std::array<double, kTierCount> passing{};  // while layers run
    int64_t for_weights = 0;                   // of a layer, on all tiers
  };

  StagePrograms& programs_;
  int64_t microbatches_;  // at most 2: gradients stay from the first to the second
  std::vector<Kind> kinds_;
  // If all ranks have a part of the vocabulary: its states, and what its loss needs meanwhile.
  std::array<int64_t, kTierCount> vocabulary_{};
  int64_t loss_ = 0;
  bool cut_;
};

}  // namespace longspan
