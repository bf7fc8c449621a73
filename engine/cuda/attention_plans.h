// Shapes of cuDNN's fused attention: keys of plans, and splits into supported shapes.
//
// This header does not include cuDNN's frontend, which takes most of a minute to compile. Only
// attention_cudnn.cpp does.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/cuda/attention.h"

namespace longspan::cuda {

/// Everything that a plan depends on. There are two masks: none, and the causal one whose last
/// query sees the last key, which a window may cut.
struct AttentionKey {
  bool backward = false;
  bool masks = false;
  bool deterministic = false;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t queries = 0, keys = 0;
  int64_t o_row = 0;   // elements from one row of o (or d_o) to the next
  float scale = 0;     // of the scores
  int64_t window = 0;  // keys that a query sees, if it does not see all before its own
  auto operator<=>(const AttentionKey&) const = default;
};

/// The key of a shape; `deterministic` matters only to the backward.
AttentionKey key_of(const AttentionShape& shape, bool backward, bool deterministic);

/// Whether the shape is a candidate for cuDNN's bfloat16 attention: a supported head width, and one
/// of the two masks.
bool fits_library(const AttentionShape& shape, bool backward);

/// The keys that some query sees, of a shape that a window cuts: the first of them.
int64_t first_key_of(const AttentionShape& shape);
/// The part of a shape with n queries from `first` on and the keys that any of them sees, from
/// first_key_of() that part on if a window cuts it.
AttentionShape part_of_queries(const AttentionShape& shape, int64_t first, int64_t n);

/// The keys from `first` on for one call of the backward: first those that all queries see, at most
/// `most` at a time, then the square cut by the mask; with a window all at once. REQUIRES:
/// fits_library(shape).
AttentionShape part_of_keys(const AttentionShape& shape, int64_t first, int64_t most);

/// Returns why the frontend rejects the shape for this compute capability (80, 90, 100); empty if
/// it accepts. Needs no GPU. Acceptance is necessary, not sufficient.
std::string why_refused(const AttentionKey& key, int compute_capability);

/// Returns cuDNN's description of a device in its JSON; workspace_on() takes it where there is no
/// such device. Throws failed if cuDNN is not found or cannot tell.
std::string description_of_device(int index);

/// Builds cuDNN's best plan of the shape whose workspace fits `room`, for a device that `device`
/// describes in cuDNN's JSON (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION). Returns the bytes of its
/// workspace. Needs no GPU, but a driver library that loads modules. Throws failed, with the shape,
/// if there is no such plan.
int64_t workspace_on(const AttentionKey& key, int64_t compute_capability, const std::string& device,
                     int64_t room);

}  // namespace longspan::cuda
