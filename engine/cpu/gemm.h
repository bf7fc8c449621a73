// Matrix products in float32, row-major, with their own packed kernels (see tile_gemm.h). Nothing
// is allocated: a piece packs its operands on the stack of its thread (about 500 KiB).
//
// The work is cut into blocks of C of a fixed size, and the sum over k is never shared between
// threads, so the bits of C do not depend on the pool. ld* are row lengths in elements.
// C may not overlap A or B.
#pragma once

#include <cstdint>

#include "engine/cpu/thread_pool.h"

namespace longspan::cpu {

/// The block of C that is one piece of the work: a thread computes it alone, so the number of
/// blocks says how evenly a product is shared. The profile hands it to the cost model.
inline constexpr int64_t kGemmBlockRows = 384;
inline constexpr int64_t kGemmBlockCols = 512;

/// Whether a product replaces C or is added to it (beta 0 or 1).
enum class Into { write, add };

/// C[m,n] (+)= A[m,k] B[n,k]^T: a linear layer with its [out, in] weight.
void gemm_nt(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc);
/// C[m,n] (+)= A[m,k] B[k,n]: the gradient of a linear layer's input.
void gemm_nn(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc);
/// C[m,n] (+)= A[k,m]^T B[k,n]: the gradient of a linear layer's weight.
void gemm_tn(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc);

/// gemm_nn on the calling thread alone, for blocks that fuse a product with what follows it.
void gemm_nn_block(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                   int64_t ldb, Into into, float* c, int64_t ldc);

}  // namespace longspan::cpu
