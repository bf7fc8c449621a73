// Low-rank adapters on the device.
#pragma once

#include "engine/cuda/gemm.h"
#include "engine/cuda/kernels/rows.h"
#include "engine/cuda/queue.h"
#include "engine/runtime/low_rank.h"

namespace longspan::cuda {

template <class T>
struct LowRankProducts {
  const Queue* queue;

  void nt(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
          bool add, T* c, int64_t ldc) const {
    gemm_nt(*queue, m, n, k, a, lda, b, ldb, add ? Into::add : Into::write, c, ldc);
  }
  void nn(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
          bool add, T* c, int64_t ldc) const {
    gemm_nn(*queue, m, n, k, a, lda, b, ldb, add ? Into::add : Into::write, c, ldc);
  }
  void tn(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
          float* c, int64_t ldc) const {
    gemm_tn(*queue, m, n, k, a, lda, b, ldb, Into::add, c, ldc);
  }
  void scale(float factor, int64_t n, T* x) const { scale_rows(*queue, factor, n, x); }
};

template <class T>
using Adapter = LowRank<T, LowRankProducts<T>>;

}  // namespace longspan::cuda
