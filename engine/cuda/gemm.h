// Matrix products, row-major, with float accumulation for all operand types.
//
// (T, C) is (float, float), (bfloat16, bfloat16) or, for gradients of parameters and scores of a
// router, (bfloat16, float). a, b and c are device pointers; lda, ldb and ldc are leading
// dimensions (row strides) in elements. The functions enqueue on the queue and return. The CUDA
// build uses cuBLASLt; the tests' host build uses plain loops.
#pragma once

#include "engine/cuda/element.h"
#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// Whether a product overwrites C or is added to it.
enum class Into { write, add };

/// C[m,n] (+)= A[m,k] B[n,k]^T: a linear layer with its [out, in] weight.
template <class T, class C>
void gemm_nt(const Queue&, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
             int64_t ldb, Into into, C* c, int64_t ldc);
/// C[m,n] (+)= A[m,k] B[k,n]: the gradient of a linear layer's input.
template <class T, class C>
void gemm_nn(const Queue&, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
             int64_t ldb, Into into, C* c, int64_t ldc);
/// C[m,n] (+)= A[k,m]^T B[k,n]: the gradient of a linear layer's weight.
template <class T, class C>
void gemm_tn(const Queue&, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b,
             int64_t ldb, Into into, C* c, int64_t ldc);

}  // namespace longspan::cuda
