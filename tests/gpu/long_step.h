// Runs steps of a model too large for StepCase: weights are drawn on all processors, gradients are
// derived from the optimizer's moments.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/cuda/device.h"
#include "planner/program/program.h"

namespace longspan::testing {

struct LongOutcome {
  double loss = 0;
  double gradient_norm = 0;
  double seconds = 0;                         // of the last step
  std::vector<std::vector<float>> gradients;  // per unit, if requested
  std::array<int64_t, kTierCount> predicted_bytes{}, high_water_bytes{};
  // Device memory in use by all processes; 0 without a GPU.
  int64_t bytes_before = 0;  // before its arenas are allocated; attention is ready
  int64_t bytes_with = 0;    // after that
  int64_t bytes_after = 0;   // after the first step
};

/// Runs `steps` steps from weights drawn from `seed`, rounded to bfloat16 for any dtype of the
/// request. Gradients are those of the first step; request them only with one step.
LongOutcome run_long_step(const StepRequest& request, cuda::Device& device, uint64_t seed,
                          int64_t steps, bool wants_gradients);

/// Two layers as wide as Llama 3.1 8B's with its embedding and vocabulary; on the host device, a
/// small model instead.
ModelSpec two_layers();

/// Attention in chunks and everything else in blocks, offloaded to the host between uses, so that
/// device memory holds only tensors of a chunk's size.
Strategy chunked_and_offloaded(const ModelSpec& model, int64_t sequence, int64_t chunk);

}  // namespace longspan::testing
