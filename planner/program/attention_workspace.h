// What a GPU library's fused attention needs around it, where activations are bfloat16: how an op's
// workspace is laid out on the device. The planner sizes workspaces by it, the CUDA backend cuts
// them up by it. Pure arithmetic; throws bad_input where a size overflows.
//
// The library works head by head, [H, nq] for what is per query and head, where ours is [nq, H]; it
// hands out bfloat16, where our accumulators are float; and it derives delta from the attention's
// output, where we have delta alone. What stands between lies in the workspace.
#pragma once

#include <cstdint>

namespace longspan {

/// One call of the library. Legend: nq queries, nk keys, H heads, Hkv key/value heads, D head dim,
/// A = H*D, G = Hkv*D.
struct AttentionCall {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t queries = 0, keys = 0;
  bool deterministic = false;  // of a backward: the same bits each time
};

/// Parts of a workspace, as byte offsets: each begins at a multiple of this.
inline constexpr int64_t kAttentionPartBytes = 256;

struct AttentionForwardWorkspace {
  int64_t statistics = 0;  // float [H, nq]
  int64_t partial = 0;     // bfloat16 [nq, A], to be merged into a sum; none without one
  int64_t inside = 0;      // the rest is the library's own
  int64_t inside_bytes = 0;
  int64_t bytes() const { return inside + inside_bytes; }
};
/// `into_sum`: keys arrive in several calls, whose outputs are merged.
AttentionForwardWorkspace attention_forward_workspace(const AttentionCall& call, bool into_sum);

struct AttentionBackwardWorkspace {
  int64_t statistics = 0;  // float [H, nq]
  int64_t output = 0;      // bfloat16 [nq, A], whose products with d_o are delta
  int64_t dq = 0;          // bfloat16 [nq, A]
  int64_t dk = 0, dv = 0;  // bfloat16 [nk, G]
  int64_t inside = 0;      // its float sums of dq, a row's sums, keys' gradients of every head, and
                           // bfloat16 [H, nq, nk] of scores' gradients where it is deterministic
  int64_t inside_bytes = 0;
  int64_t bytes() const { return inside + inside_bytes; }
};
AttentionBackwardWorkspace attention_backward_workspace(const AttentionCall& call);

/// The largest call that a backward over `whole` is done with. It takes at most as many keys as
/// queries, so that the workspace is of a chunk's size however many chunks of keys are on the
/// device; and where it is deterministic, tiles of as many queries as keep the gradients of all
/// scores of a tile, 2*H*nq*nk bytes, within 1 GiB, and of at most 8192.
AttentionCall backward_tile(const AttentionCall& whole);

}  // namespace longspan
