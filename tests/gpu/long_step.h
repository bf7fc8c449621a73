// One step of a model too large for StepCase: weights are drawn by all processors, gradients are
// read off the optimizer's moments.
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
  std::vector<std::vector<float>> gradients;  // per unit, where asked for
  std::array<int64_t, kTierCount> predicted_bytes{}, high_water_bytes{};
  int64_t bytes_before =
      0;                   // device memory taken by all processes before the program's arenas were,
  int64_t bytes_with = 0;  // with them, and after the first step
  int64_t bytes_after = 0;  // 0 where there is no GPU
};

/// `steps` steps from weights drawn by `seed`, rounded to bfloat16 whatever the request's dtype.
/// Gradients are the first step's, so they can be asked for with one.
LongOutcome run_long_step(const StepRequest& request, cuda::Device& device, uint64_t seed,
                          int64_t steps, bool wants_gradients);

/// Two layers as wide as Llama 3.1 8B's with its embedding and vocabulary; on the host, of the
/// tests' size.
ModelSpec two_layers();

/// Chunks of attention and blocks of everything else, away on the host whenever they are not at
/// work: what device memory holds is of a chunk's size.
Strategy chunked_and_offloaded(const ModelSpec& model, int64_t sequence, int64_t chunk);

}  // namespace longspan::testing
