// Low-rank adapters on the CPU. Internal to engine/cpu.
#pragma once

#include <algorithm>

#include "engine/cpu/blocks.h"
#include "engine/cpu/gemm.h"
#include "engine/cpu/rows.h"
#include "engine/runtime/low_rank.h"

namespace longspan::cpu {

struct LowRankProducts {
  ThreadPool* pool;

  void nt(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
          bool add, float* c, int64_t ldc) const {
    gemm_nt(*pool, m, n, k, a, lda, b, ldb, add ? Into::add : Into::write, c, ldc);
  }
  void nn(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
          bool add, float* c, int64_t ldc) const {
    gemm_nn(*pool, m, n, k, a, lda, b, ldb, add ? Into::add : Into::write, c, ldc);
  }
  void tn(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
          float* c, int64_t ldc) const {
    gemm_tn(*pool, m, n, k, a, lda, b, ldb, Into::add, c, ldc);
  }
  void scale(float factor, int64_t n, float* x) const {
    for_rows(*pool, n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) x[i] *= factor;
    });
  }
};

using Adapter = LowRank<float, LowRankProducts>;

inline Adapter adapter_of(const BlockContext& context, Projection projection,
                          const AdapterMemory<float>& memory) {
  return {{context.pool}, *context.model, context.adapters, projection, memory};
}

}  // namespace longspan::cpu
