// The memory that a microbatch holds between its forward and its backward, and that its loss needs.
// Pure arithmetic; safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "planner/program/program.h"

namespace longspan {

/// Bytes on each tier, with arena alignment, that the first `layers` layers keep after the forward
/// of the first `slices` slices, one for whole sequences. `kv_units`: kv_groups().
std::array<int64_t, kTierCount> saved_bytes(const ModelSpec& model, const Strategy& strategy,
                                            const Lengths& lengths, const TensorBytes& bytes,
                                            int64_t kv_units, int64_t layers, int64_t slices);
/// The same for all layers of a program.
std::array<int64_t, kTierCount> saved_bytes(const StepRequest& request);

/// Units of one tensor in all layers of a program, and their bytes with arena alignment.
struct SavedUnits {
  Tensor tensor;
  int64_t units, bytes;
};
/// What the forward of a program of one stage, without its pipeline, leaves on the device and
/// OFFLOAD moves. `sliced`: the program is that of a slice, whose keys and values stay.
std::vector<SavedUnits> movable_units(const StepRequest& request, bool sliced);
/// Whether no layer keeps attention's output.
inline bool recomputes_all_attention(const Strategy& strategy) {
  return strategy.attention_out == SavedPolicy{Saved::recompute, 1};
}

/// Bytes, with arena alignment, that a layer keeps from the gradients of its inputs to those of its
/// weights, on all tiers together.
int64_t bytes_for_weights(const ModelSpec& model, const Lengths& lengths, const TensorBytes& bytes);

/// Device bytes, with arena alignment, of the operands of a block's loss without hidden states and
/// without states that stay: the workspace, and the output layer's gradients and loaded or gathered
/// parameters. `workspace`: that of the strategy's tile.
int64_t loss_bytes(const ModelSpec& model, const Strategy& strategy, const TensorBytes& bytes,
                   int64_t workspace);

}  // namespace longspan
