// One call of a library's fused attention of bfloat16, and what lies where in it. cuDNN's in the
// CUDA build (attention_cudnn.cpp), loops in the tests' host build; attention_fused.cpp makes of
// such calls what the engine means by attention.
//
// Legend: nq queries, nk keys, H query heads, Hkv key/value heads, D head dim, A = H*D, G = Hkv*D.
#pragma once

#include "engine/cuda/attention_plans.h"
#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// Forward: o[nq,A], its rows key.o_row apart, and statistics[H,nq], the log-sum-exps, are written.
/// Backward: both are read (o without gaps, d_o with o's row), dq[nq,A] and dk, dv[nk,G] written.
/// q[nq,A] and k, v[nk,G] have no gaps.
struct FusedOperands {
  const bfloat16 *q, *k, *v;
  bfloat16* o;
  float* statistics;
  const bfloat16* d_o = nullptr;
  bfloat16 *dq = nullptr, *dk = nullptr, *dv = nullptr;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

/// REQUIRES: the queue has fused attention, and fits_library() said yes to the key's shape. Throws
/// failed if the library wants more workspace than there is, or fails.
void run_fused_attention(const Queue&, const AttentionKey& key, const FusedOperands& operands);

/// attention_backward() of such a shape by calls of at most this size; the workspace is the tile's.
void fused_backward(const Queue&, const AttentionBackward<bfloat16>& call,
                    const AttentionCall& tile);

}  // namespace longspan::cuda
