// One call of a library's fused bfloat16 attention: cuDNN's in the CUDA build
// (attention_cudnn.cpp), loops in the tests. attention_fused.cpp builds the engine's
// attention from such calls.
//
// Legend: nq queries, nk keys, H query heads, Hkv key/value heads, D head dim, A = H*D, G = Hkv*D.
#pragma once

#include <memory>
#include <vector>

#include "base/progress.h"
#include "engine/cpu/thread_pool.h"
#include "engine/cuda/attention_calls.h"
#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// Forward: writes o[nq,A], with rows key.o_row apart, and statistics[H,nq], the log-sum-exps.
/// Backward: reads both (o contiguous, d_o with rows key.o_row apart) and writes dq[nq,A] and dk,
/// dv[nk,G]. q[nq,A] and k, v[nk,G] are contiguous.
struct FusedOperands {
  const bfloat16 *q, *k, *v;
  bfloat16* o;
  float* statistics;
  const bfloat16* d_o = nullptr;
  bfloat16 *dq = nullptr, *dk = nullptr, *dv = nullptr;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

/// The library's attention on one queue, with the plans that it has built. Used by one thread.
class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  /// Builds the calls' plans, several at a time on the pool, so that none is built in a step and
  /// what the library refuses is known before the first. Reports every plan, from the pool's
  /// threads, one at a time. Throws failed, naming the shape.
  virtual void prepare(const std::vector<LibraryCall>& calls, ThreadPool& pool,
                       const Progress& progress) = 0;
  /// REQUIRES: fits_library() holds for the key's shape. Throws failed if the library needs more
  /// workspace than given, or fails.
  virtual void run(const AttentionKey& key, const FusedOperands& operands) = 0;
};

/// The library's version: 10000 * major + 100 * minor + patch; 0 if it is not found.
int64_t cudnn_version();

/// Opens the library for a stream (a cudaStream_t) of the current device; null if it is not found.
/// Throws failed if it does not start.
std::unique_ptr<FusedAttention> open_fused_attention(void* stream, int64_t compute_capability);

/// attention_backward() by calls of at most `tile`'s size, with its workspace. REQUIRES: the queue
/// has fused attention, and fits_library() holds for the shape.
void fused_backward(const Queue&, const AttentionBackward<bfloat16>& call,
                    const AttentionCall& tile);

}  // namespace longspan::cuda
