// Cuts unequal layers of a model into the stages of a pipeline.
//
// Embedding and head are layers with costs of their own. Times are in any unit, the same for all;
// memory is in bytes or any unit that makes it whole. Pure functions; safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/schedule/costs.h"

namespace longspan {

/// Costs of one layer for one microbatch.
struct LayerCosts {
  double forward = 1, input = 1, weight = 1;
  int64_t activations = 1;  ///< from F to the end of I
  int64_t for_weights = 1;  ///< the part of them that stays from I to the end of W
  int64_t resident = 0;     ///< held throughout: parameters and their states
};

/// The ends of `stages` stages of at least one layer each that minimize the time of the slowest;
/// stage k is layers [ends[k - 1], ends[k]). A stage holds the resident memory of its layers and
/// the activations of `in_flight[k]` microbatches, at most `memory_limit` (0: unlimited). Empty if
/// no such cut exists.
std::vector<int64_t> cut_layers(const std::vector<LayerCosts>& layers, int32_t stages,
                                int64_t memory_limit, const std::vector<int64_t>& in_flight);

/// The costs of the stages that end at `ends`.
ScheduleCosts costs_of_stages(const std::vector<LayerCosts>& layers,
                              const std::vector<int64_t>& ends, double communication);

/// The resident memory of each stage.
std::vector<int64_t> resident_of_stages(const std::vector<LayerCosts>& layers,
                                        const std::vector<int64_t>& ends);

}  // namespace longspan
