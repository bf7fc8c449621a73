// Runs one step of a plan of several ranks, as threads, and compares their results with one rank's:
// the part that ranks_test and mpi_ranks_test share, with their plans.
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

/// One step of the case's ranks, each a thread of this process.
WorldOutcome run_world(const StepCase& step);

/// A unit of the model, assembled from the slices of a tensor group, which must agree on replicated
/// parts. Checks that by Catch's CHECK, so only within a test case.
std::vector<float> gathered(const StepCase& step, const WorldOutcome& world, size_t unit,
                            std::vector<std::vector<float>> StepOutcome::*values);

/// Checks that the case's ranks, as threads, end with the numbers of one rank alone within
/// `tolerance` (relative, norm-wise; in float of every tensor's gradient, in a narrower type of
/// every unit's), with the same bits when they run again, and in the memory and with the messages
/// that were predicted. Only within a test case.
void check_against_one_rank(const StepCase& step, double tolerance = 1e-5);

ModelSpec model_with_heads(ModelSpec model, int64_t heads, int64_t kv_heads);

/// All tensors on the device ("kept"), all offloaded ("away, q-outer"), and the FPDT order of
/// backward ("away, kv-outer").
std::map<std::string, Strategy> strategies(int64_t chunk);

/// The same for a tensor group, which has one block of the whole sequence; and "tiled, stored": one
/// chunk in small tiles, with saved tensors on host and disk and the states on the host.
std::map<std::string, Strategy> tensor_strategies(int64_t chunk, int64_t sequence);

/// What a head group saves for its backward: everything ("kept"), only the layer's input
/// ("recomputed"), or queries and K,V on the host, from which attention is recomputed ("parked").
std::map<std::string, Strategy> group_strategies(int64_t sequence);

}  // namespace longspan::testing
