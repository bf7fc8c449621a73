// Matrix products in float32, row-major, with Eigen's kernels. Nothing is allocated on the heap:
// each piece packs its operands on its thread's stack (about 500 KiB).
//
// C is split into blocks of a fixed size, and the sum over k is never split between threads, so the
// bits of C do not depend on the pool. ld* are row lengths in elements. C must not overlap A or B.
#pragma once

#include <cstdint>

#include "engine/cpu/thread_pool.h"

namespace longspan::cpu {

/// The block of C that one thread computes, so the number of blocks determines how evenly a product
/// is shared. The profile passes it to the cost model.
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

// Products of groups of rows, each with a matrix of its own: group g is rows [first[g], first[g+1])
// of A (and of C, or of B), and its matrix the g-th of `groups` that follow each other. At most
// kMostExperts groups; empty ones have no product.

/// C[rows of g, n] = A[rows of g, k] B_g[n,k]^T.
void grouped_nt(ThreadPool& pool, int64_t groups, const int64_t* first, int64_t n, int64_t k,
                const float* a, const float* b, float* c);
/// C[rows of g, n] = A[rows of g, k] B_g[k,n].
void grouped_nn(ThreadPool& pool, int64_t groups, const int64_t* first, int64_t n, int64_t k,
                const float* a, const float* b, float* c);
/// C_g[m,n] += A[rows of g, m]^T B[rows of g, n].
void grouped_tn(ThreadPool& pool, int64_t groups, const int64_t* first, int64_t m, int64_t n,
                const float* a, const float* b, float* c);

/// gemm_nn on the calling thread only, for blocks that fuse a product with other work.
void gemm_nn_block(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                   int64_t ldb, Into into, float* c, int64_t ldc);

}  // namespace longspan::cpu
