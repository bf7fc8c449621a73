// The tiles of a block in which the ranks of an expert group exchange rows, and their bytes.
//
// Every rank of the group routes a tile of its own tokens at the same time. What a rank receives of
// it depends on the routing; memory is for a bound, the same for all ranks and tiles.
//
// Legend: t tokens of a tile, k active experts of a token, E expert degree, C most_received_rows().
#pragma once

#include <cstdint>

#include "models/model_spec.h"
#include "planner/program/tensor.h"

namespace longspan {

struct ExpertTiles {
  int64_t count = 1;
  int64_t tokens = 0, last = 0;  // of each tile, and of the last
  int64_t tokens_of(int64_t tile) const { return tile + 1 == count ? last : tokens; }
};
/// The tiles of a block of `lengths`.
ExpertTiles expert_tiles(const Strategy& strategy, const Lengths& lengths);

/// The rows that a rank has memory for: those of all tokens of all ranks, each as often as it can
/// have experts on one rank; or a stated part of the mean, t*k.
int64_t most_received_rows(const Experts& experts, const Strategy& strategy,
                           const Lengths& lengths);

/// The rows that the busiest rank receives of a tile of `tokens`, at the imbalance that times are
/// predicted for, as far as a routing can have it and there is memory for them.
int64_t busiest_rows(const Experts& experts, const Strategy& strategy, const Lengths& lengths,
                     int64_t tokens);

/// The first rows of experts in the order of experts, and the end of the last: int64 [count + 1],
/// padded to whole cache lines. A tile's routing begins with those of its own rows; arrivals are
/// those of all ranks of the group.
int64_t first_rows_bytes(const Experts& experts);

/// Bytes of the tensors of a tile, and of workspaces (tensor.h).
struct ExpertTileBytes {
  int64_t routing = 0, routed = 0, routed_weights = 0;
  int64_t received = 0, received_weights = 0, arrivals = 0;
  int64_t experts_forward = 0, experts_backward = 0;  // C * (W + F) and C * (W + 2 F) numbers
  int64_t shared_forward = 0, shared_backward = 0;    // likewise, t and the shared experts' widths
};
/// REQUIRES: the model, with a rank's share of the widths, has experts. Throws bad_input if a size
/// overflows.
ExpertTileBytes bytes_of_expert_tile(const ModelSpec& model, const Lengths& lengths,
                                     const Strategy& strategy, DType dtype);

}  // namespace longspan
