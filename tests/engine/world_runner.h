// Runs one step of a plan of several ranks, as threads, and compares their results with one rank's.
// Shared by ranks_test and mpi_ranks_test, with their plans.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/engine/plan_runner.h"

namespace longspan::testing {

struct WorldOutcome {
  std::vector<StepOutcome> ranks;
  std::vector<int64_t> sent, predicted_sent;
};

/// Runs one step on the case's ranks, each a thread of this process.
WorldOutcome run_world(const StepCase& step);

/// Returns a unit of the model, assembled from the slices of a tensor group. CHECKs that the slices
/// agree on replicated parts, so call it within a test case.
std::vector<float> gathered(const StepCase& step, const WorldOutcome& world, size_t unit,
                            std::vector<std::vector<float>> StepOutcome::*values);

/// Checks that the case's ranks, as threads, give the numbers of one rank within `tolerance`
/// (relative, norm-wise; in float32 for every tensor's gradient, in a narrower type for every
/// unit's), the same bits when they run again, and the predicted memory and bytes sent. Call it
/// within a test case.
void check_against_one_rank(const StepCase& step, double tolerance = 1e-5);

ModelSpec model_with_heads(ModelSpec model, int64_t heads, int64_t kv_heads);

/// All tensors on the device ("kept"), all offloaded ("away, q-outer"), and all offloaded with
/// FPDT's order of the backward ("away, kv-outer").
std::map<std::string, Strategy> strategies(int64_t chunk);

/// The same for a tensor group, in one block of the whole sequence. Also "in blocks": "away,
/// q-outer" in blocks of a chunk; and "tiled, stored": one chunk in small tiles, with saved tensors
/// on host and NVMe and the states on the host.
std::map<std::string, Strategy> tensor_strategies(int64_t chunk, int64_t sequence);

/// Head groups that save everything for the backward ("kept"), only the layer's input
/// ("recomputed"), or queries and K,V on the host to recompute attention from ("parked").
std::map<std::string, Strategy> group_strategies(int64_t sequence);

}  // namespace longspan::testing
