// How attention's workspace is laid out on the device: what the planner's rule for bfloat16 (see
// planner/program/workspace.h) is written to. Pure arithmetic; tests hold the two together.
//
// The library's attention works head by head, [H, nq] for what is per query and head, where ours is
// [nq, H]; it hands out bfloat16, where our accumulators are float; and it derives delta from the
// attention's output, where we have delta alone. What stands between lies in the workspace.
#pragma once

#include <cstdint>

#include "engine/cuda/attention.h"

namespace longspan::cuda {

/// Byte offsets; each part is aligned to kPartBytes.
inline constexpr int64_t kPartBytes = 256;

/// What the library may ask for itself: float accumulators of dq, a row's sums, and keys' gradients
/// for every query head. A plan that asks for more is not used.
int64_t library_bytes(const AttentionShape& shape, bool backward);

struct ForwardWorkspace {
  int64_t statistics = 0;  // float [H, nq]
  int64_t partial = 0;     // bfloat16 [nq, A], to be merged into o
  int64_t library = 0;     // the rest is the library's own
};
ForwardWorkspace forward_workspace(const AttentionShape& shape);

struct BackwardWorkspace {
  int64_t statistics = 0;  // float [H, nq]
  int64_t output = 0;      // bfloat16 [nq, A], whose products with d_o are delta
  int64_t dq = 0;          // bfloat16 [nq, A]
  int64_t dk = 0, dv = 0;  // bfloat16 [nk, G]
  int64_t library = 0;
};
BackwardWorkspace backward_workspace(const AttentionShape& shape);

/// Of the backward, keys are taken in parts of at most as many as there are queries: workspace is
/// then of the size of a chunk, however many chunks of keys are on the device.
AttentionShape part_of_keys(const AttentionShape& shape, int64_t first);

}  // namespace longspan::cuda
