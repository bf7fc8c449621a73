#include "engine/cpu/gemm.h"

#define EIGEN_DONT_PARALLELIZE  // the pool parallelizes, with pieces of its own
#include <Eigen/Core>
#include <algorithm>
#include <functional>

#include "base/units.h"

namespace longspan::cpu {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<>;
using In = Eigen::Map<const Matrix, Eigen::Unaligned, Stride>;
using Out = Eigen::Map<Matrix, Eigen::Unaligned, Stride>;

In view(const float* p, int64_t rows, int64_t cols, int64_t ld) {
  return {p, rows, cols, Stride(ld)};
}

template <class Left, class Right>
void product(const Left& a, const Right& b, Into into, float* c, int64_t ldc) {
  Out out(c, a.rows(), b.cols(), Stride(ldc));
  if (into == Into::add) {
    out.noalias() += a * b;
  } else {
    out.noalias() = a * b;
  }
}

// Calls block(row, rows, col, cols) for every block of a C of m x n.
template <class Block>
void share(ThreadPool& pool, int64_t m, int64_t n, const Block& block) {
  const int64_t across = ceil_div(n, kGemmBlockCols);
  const auto piece = [&](int64_t index, int) {
    const int64_t row = index / across * kGemmBlockRows, col = index % across * kGemmBlockCols;
    block(row, std::min(kGemmBlockRows, m - row), col, std::min(kGemmBlockCols, n - col));
  };
  pool.run(ceil_div(m, kGemmBlockRows) * across, std::ref(piece));
}

}  // namespace

void gemm_nt(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc) {
  share(pool, m, n, [&](int64_t row, int64_t rows, int64_t col, int64_t cols) {
    product(view(a + row * lda, rows, k, lda), view(b + col * ldb, cols, k, ldb).transpose(), into,
            c + row * ldc + col, ldc);
  });
}

void gemm_nn(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc) {
  share(pool, m, n, [&](int64_t row, int64_t rows, int64_t col, int64_t cols) {
    product(view(a + row * lda, rows, k, lda), view(b + col, k, cols, ldb), into,
            c + row * ldc + col, ldc);
  });
}

void gemm_tn(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc) {
  share(pool, m, n, [&](int64_t row, int64_t rows, int64_t col, int64_t cols) {
    product(view(a + row, k, rows, lda).transpose(), view(b + col, k, cols, ldb), into,
            c + row * ldc + col, ldc);
  });
}

void gemm_nn_block(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                   int64_t ldb, Into into, float* c, int64_t ldc) {
  product(view(a, m, k, lda), view(b, k, n, ldb), into, c, ldc);
}

}  // namespace longspan::cpu
