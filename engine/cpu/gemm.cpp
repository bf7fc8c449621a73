#include "engine/cpu/gemm.h"

#define EIGEN_DONT_PARALLELIZE  // the pool parallelizes, with pieces of its own
#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <functional>

#include "base/units.h"
#include "models/model_spec.h"

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

// Calls block(group, row, rows, col, cols) for every block of the rows of every group.
template <class Block>
void share_groups(ThreadPool& pool, int64_t groups, const int64_t* first, int64_t n,
                  const Block& block) {
  const int64_t across = ceil_div(n, kGemmBlockCols);
  std::array<int64_t, kMostExperts + 1> before;  // blocks of rows in earlier groups
  before[0] = 0;
  for (int64_t g = 0; g < groups; ++g) {
    before[g + 1] = before[g] + ceil_div(first[g + 1] - first[g], kGemmBlockRows);
  }
  const auto piece = [&](int64_t index, int) {
    const int64_t of_rows = index / across, col = index % across * kGemmBlockCols;
    const int64_t group =
        std::upper_bound(before.begin(), before.begin() + groups, of_rows) - before.begin() - 1;
    const int64_t row = first[group] + (of_rows - before[group]) * kGemmBlockRows;
    block(group, row, std::min(kGemmBlockRows, first[group + 1] - row), col,
          std::min(kGemmBlockCols, n - col));
  };
  pool.run(before[groups] * across, std::ref(piece));
}

}  // namespace

void grouped_nt(ThreadPool& pool, int64_t groups, const int64_t* first, int64_t n, int64_t k,
                const float* a, const float* b, float* c) {
  share_groups(
      pool, groups, first, n, [&](int64_t g, int64_t row, int64_t rows, int64_t col, int64_t cols) {
        product(view(a + row * k, rows, k, k), view(b + (g * n + col) * k, cols, k, k).transpose(),
                Into::write, c + row * n + col, n);
      });
}

void grouped_nn(ThreadPool& pool, int64_t groups, const int64_t* first, int64_t n, int64_t k,
                const float* a, const float* b, float* c) {
  share_groups(pool, groups, first, n,
               [&](int64_t g, int64_t row, int64_t rows, int64_t col, int64_t cols) {
                 product(view(a + row * k, rows, k, k), view(b + g * k * n + col, k, cols, n),
                         Into::write, c + row * n + col, n);
               });
}

void grouped_tn(ThreadPool& pool, int64_t groups, const int64_t* first, int64_t m, int64_t n,
                const float* a, const float* b, float* c) {
  const int64_t across = ceil_div(n, kGemmBlockCols), blocks = ceil_div(m, kGemmBlockRows) * across;
  const auto piece = [&](int64_t index, int) {
    const int64_t g = index / blocks, k = first[g + 1] - first[g];
    if (k == 0) return;
    const int64_t row = index % blocks / across * kGemmBlockRows;
    const int64_t col = index % across * kGemmBlockCols;
    product(view(a + first[g] * m + row, k, std::min(kGemmBlockRows, m - row), m).transpose(),
            view(b + first[g] * n + col, k, std::min(kGemmBlockCols, n - col), n), Into::add,
            c + (g * m + row) * n + col, n);
  };
  pool.run(groups * blocks, std::ref(piece));
}

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
