// Plans of cuDNN's fused attention, one per shape, kept with the workspace each asks for.
//
// This header knows nothing of cuDNN: its frontend takes most of a minute to compile, and one file
// (attention_cudnn.cpp) is where that happens.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/cuda/attention.h"

namespace longspan::cuda {

/// All that a plan depends on. Of masks there are two: none, and the causal one whose last query
/// sees the last key.
struct AttentionKey {
  bool backward = false;
  bool masks = false;
  bool deterministic = false;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t queries = 0, keys = 0;
  int64_t o_row = 0;  // elements from one row of o (or d_o) to the next
  auto operator<=>(const AttentionKey&) const = default;
};

/// The key of a shape; `deterministic` matters to the backward alone.
AttentionKey key_of(const AttentionShape& shape, bool backward, bool deterministic);

/// Whether cuDNN's attention of bfloat16 can be asked about at all: widths it takes, and no mask
/// but the two.
bool fits_library(const AttentionShape& shape, bool backward);

/// n queries from `first` on, with the keys that any of them sees.
AttentionShape part_of_queries(const AttentionShape& shape, int64_t first, int64_t n);

/// The keys from `first` on that one call of the backward takes: those that all queries see, `most`
/// at a time, and then the square that the mask cuts. REQUIRES: fits_library(shape).
AttentionShape part_of_keys(const AttentionShape& shape, int64_t first, int64_t most);

/// What the frontend says of the shape on this compute capability (80, 90, 100), without a GPU:
/// empty, or why it refuses. That it accepts is necessary, not sufficient.
std::string why_refused(const AttentionKey& key, int compute_capability);

}  // namespace longspan::cuda
