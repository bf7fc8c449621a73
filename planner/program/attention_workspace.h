// The device workspace of a GPU library's fused attention with bfloat16 activations. The planner
// sizes workspaces by it, and the CUDA backend divides them by it. Pure arithmetic; throws
// bad_input if a size overflows.
//
// The library stores values per query and head as [H, nq], longspan as [nq, H]. It returns
// bfloat16, while longspan accumulates in float. It derives delta from attention's output, while
// longspan has only delta. The workspace holds the conversions.
#pragma once

#include <cstdint>

namespace longspan {

/// One call of the library. Legend: nq queries, nk keys, H heads, Hkv key/value heads, D head dim,
/// A = H*D, G = Hkv*D.
struct AttentionCall {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t queries = 0, keys = 0;
  bool deterministic = false;      // backward with the same bits each time
  int64_t compute_capability = 0;  // as DeviceProfile::compute_capability
  int64_t window = 0;              // that hides keys from some queries; 0: none
  int64_t value_dim = 0;           // of values and output; 0: D
  int64_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
};

/// Alignment of a workspace's parts; they are given as byte offsets.
inline constexpr int64_t kAttentionPartBytes = 256;

struct AttentionForwardWorkspace {
  int64_t statistics = 0;  // float [H, nq]
  int64_t partial = 0;     // bfloat16 [nq, A], to be merged into a sum; unused without one
  int64_t inside = 0;      // the library's own part
  int64_t inside_bytes = 0;
  int64_t bytes() const { return inside + inside_bytes; }
};
/// `into_sum`: keys arrive in several calls, whose outputs are merged.
AttentionForwardWorkspace attention_forward_workspace(const AttentionCall& call, bool into_sum);

struct AttentionBackwardWorkspace {
  int64_t statistics = 0;  // float [H, nq]
  int64_t output = 0;      // bfloat16 [nq, A]; its products with d_o are delta
  int64_t dq = 0;          // bfloat16 [nq, A]
  int64_t dk = 0, dv = 0;  // bfloat16 [nk, G]
  int64_t inside = 0;  // the library's float sums of dq, row sums, gradients of keys per head, and,
                       // if deterministic, gradients of scores, bfloat16 [H, nq, nk]
  int64_t inside_bytes = 0;
  int64_t bytes() const { return inside + inside_bytes; }
};
AttentionBackwardWorkspace attention_backward_workspace(const AttentionCall& call);

/// Bytes per key and element of A of the library's own gradients of keys and values: cuDNN keeps
/// one for each query head if several share a key head (`grouped`), in bfloat16 on Hopper and
/// datacenter Blackwell, in float on other architectures, which also copy ungrouped ones. Read off
/// the plans of cuDNN 9.19 for devices of all architectures from Ampere on. With an unknown
/// capability the most of all.
int64_t key_gradient_bytes(bool grouped, int64_t compute_capability);

/// Throws bad_input if the library takes more on a device of capability `device` than a plan for
/// capability `planned` reserves.
void check_attention_memory(bool grouped, int64_t planned, int64_t device);

/// The largest call into which a backward over `whole` is divided. It takes at most as many keys as
/// queries, so the workspace has a chunk's size, however many chunks of keys are on the device;
/// with a window, all keys that its queries see. If deterministic, a tile has at most 8192 queries,
/// and the gradients of its scores, 2*H*nq*nk bytes, take at most 1 GiB.
AttentionCall backward_tile(const AttentionCall& whole);

}  // namespace longspan
