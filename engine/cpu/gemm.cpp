#include "engine/cpu/gemm.h"

#include <algorithm>
#include <functional>

#include "base/units.h"
#include "engine/cpu/tile_gemm.h"

namespace longspan::cpu {
namespace {

// A block of A and a group of B's panels stay in the second-level cache, one panel in the first.
constexpr int64_t kBlockRows = kGemmBlockRows;
constexpr int64_t kBlockCols = kGemmBlockCols;
constexpr int64_t kBlockDepth = 256;
constexpr int64_t kGroupCols = 64;
constexpr int64_t kStrideA = tile_stride(kBlockDepth);
static_assert(kBlockRows % kTileRows == 0 && kGroupCols % kTileCols == 0);

enum class Layout { nt, nn, tn };

struct Product {
  int64_t k;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
};

// A block of A as rows of kStrideA floats.
template <Layout kLayout>
void pack_a(const Product& p, int64_t row, int64_t rows, int64_t deep, int64_t depth, float* to) {
  if (kLayout == Layout::tn) {
    pack_transposed(p.a + deep * p.lda + row, p.lda, depth, rows, to, kStrideA, depth);
  } else {
    pack_rows(p.a + row * p.lda + deep, p.lda, rows, depth, to, kStrideA, depth);
  }
}

// Up to kGroupCols columns of B as panels [depth][kTileCols], the last one filled up with zeros.
template <Layout kLayout>
void pack_b(const Product& p, int64_t deep, int64_t depth, int64_t col, int64_t cols, float* to) {
  constexpr int64_t kPanel = kBlockDepth * kTileCols;
  if (kLayout == Layout::nt) {
    for (int64_t j = 0; j < cols; j += kTileCols, to += kPanel) {
      pack_transposed(p.b + (col + j) * p.ldb + deep, p.ldb, std::min<int64_t>(kTileCols, cols - j),
                      depth, to, kTileCols, kTileCols);
    }
    return;
  }
  for (int64_t k = 0; k < depth; ++k) {
    const float* from = p.b + (deep + k) * p.ldb + col;
    float* target = to + k * kTileCols;
    int64_t j = 0;
    for (; j + kTileCols <= cols; j += kTileCols, target += kPanel) {
      store(target, load(from + j));
      store(target + kLanes, load(from + j + kLanes));
    }
    for (int64_t r = j; j < cols && r < j + kTileCols; ++r) target[r - j] = r < cols ? from[r] : 0;
  }
}

// C[rows, cols] (+)= A panel where both lie packed; a panel that is wider than what is left of C
// goes through a buffer.
template <bool kAdd>
void multiply_panel(int64_t rows, int64_t cols, int64_t depth, const float* a, const float* panel,
                    float* c, int64_t ldc) {
  if (cols == kTileCols) {
    tile_gemm<kAdd>(rows, kTileCols, depth, a, kStrideA, 1, panel, kTileCols, c, ldc);
    return;
  }
  alignas(64) float edge[kBlockRows * kTileCols];
  if (kAdd) pack_rows(c, ldc, rows, cols, edge, kTileCols, kTileCols);
  tile_gemm<kAdd>(rows, kTileCols, depth, a, kStrideA, 1, panel, kTileCols, edge, kTileCols);
  pack_rows(edge, kTileCols, rows, cols, c, ldc, cols);
}

template <Layout kLayout>
void multiply_block(const Product& p, int64_t row, int64_t rows, int64_t col, int64_t cols,
                    bool add) {
  alignas(64) float packed_a[kBlockRows * kStrideA];
  alignas(64) float packed_b[kBlockDepth * kGroupCols];
  for (int64_t deep = 0; deep < p.k; deep += kBlockDepth) {
    const int64_t depth = std::min(kBlockDepth, p.k - deep);
    pack_a<kLayout>(p, row, rows, deep, depth, packed_a);
    for (int64_t group = 0; group < cols; group += kGroupCols) {
      const int64_t end = std::min(cols, group + kGroupCols);
      pack_b<kLayout>(p, deep, depth, col + group, end - group, packed_b);
      const float* panel = packed_b;
      for (int64_t j = group; j < end; j += kTileCols, panel += kBlockDepth * kTileCols) {
        const int64_t width = std::min<int64_t>(kTileCols, end - j);
        float* c = p.c + row * p.ldc + col + j;
        if (add || deep > 0) {
          multiply_panel<true>(rows, width, depth, packed_a, panel, c, p.ldc);
        } else {
          multiply_panel<false>(rows, width, depth, packed_a, panel, c, p.ldc);
        }
      }
    }
  }
}

template <Layout kLayout>
void multiply(ThreadPool& pool, int64_t m, int64_t n, Into into, const Product& p) {
  const int64_t col_blocks = ceil_div(n, kBlockCols);
  auto block = [&](int64_t piece, int) {
    const int64_t row = piece / col_blocks * kBlockRows;
    const int64_t col = piece % col_blocks * kBlockCols;
    multiply_block<kLayout>(p, row, std::min(kBlockRows, m - row), col,
                            std::min(kBlockCols, n - col), into == Into::add);
  };
  pool.run(ceil_div(m, kBlockRows) * col_blocks, std::ref(block));
}

}  // namespace

void gemm_nt(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc) {
  multiply<Layout::nt>(pool, m, n, into, {k, a, lda, b, ldb, c, ldc});
}

void gemm_nn(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc) {
  multiply<Layout::nn>(pool, m, n, into, {k, a, lda, b, ldb, c, ldc});
}

void gemm_tn(ThreadPool& pool, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
             const float* b, int64_t ldb, Into into, float* c, int64_t ldc) {
  multiply<Layout::tn>(pool, m, n, into, {k, a, lda, b, ldb, c, ldc});
}

void gemm_nn_block(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
                   int64_t ldb, Into into, float* c, int64_t ldc) {
  for (int64_t row = 0; row < m; row += kBlockRows) {
    multiply_block<Layout::nn>({k, a, lda, b, ldb, c, ldc}, row, std::min(kBlockRows, m - row), 0,
                               n, into == Into::add);
  }
}

}  // namespace longspan::cpu
