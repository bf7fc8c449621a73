#include "engine/cpu/gemm.h"

#include <catch2/catch.hpp>

#include "tests/engine/cpu/cpu_test.h"

using namespace longspan;
using namespace longspan::cpu_test;
using cpu::Into;

namespace {

enum class Layout { nt, nn, tn };

struct Case {
  int64_t m, n, k;
  int64_t slack;  // row lengths exceed the rows by this
};

struct Operands {
  Operands(Layout layout, const Case& c, uint32_t seed)
      : lda((layout == Layout::tn ? c.m : c.k) + c.slack),
        ldb((layout == Layout::nt ? c.k : c.n) + c.slack),
        ldc(c.n + c.slack) {
    Random random(seed);
    a = random.normal(lda * (layout == Layout::tn ? c.k : c.m));
    b = random.normal(ldb * (layout == Layout::nt ? c.n : c.k));
    start = random.normal(ldc * c.m);
  }
  int64_t lda, ldb, ldc;
  Floats a, b, start;
};

void multiply(Layout layout, ThreadPool& pool, const Case& c, const Operands& o, Into into,
              float* to) {
  const auto gemm = layout == Layout::nt   ? cpu::gemm_nt
                    : layout == Layout::nn ? cpu::gemm_nn
                                           : cpu::gemm_tn;
  gemm(pool, c.m, c.n, c.k, o.a.data(), o.lda, o.b.data(), o.ldb, into, to, o.ldc);
}

Doubles expected(Layout layout, const Case& c, const Operands& o, Into into) {
  Doubles result = widen(o.start);
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = into == Into::add ? result[i * o.ldc + j] : 0;
      for (int64_t p = 0; p < c.k; ++p) {
        const double a = layout == Layout::tn ? o.a[p * o.lda + i] : o.a[i * o.lda + p];
        const double b = layout == Layout::nt ? o.b[j * o.ldb + p] : o.b[p * o.ldb + j];
        sum += a * b;
      }
      result[i * o.ldc + j] = sum;
    }
  }
  return result;
}

}  // namespace

TEST_CASE("products of every layout and shape agree with the double sum") {
  const Layout layout = GENERATE(Layout::nt, Layout::nn, Layout::tn);
  const Into into = GENERATE(Into::write, Into::add);
  const Case c = GENERATE(Case{1, 1, 1, 0}, Case{1, 17, 3, 2}, Case{7, 5, 9, 1},
                          Case{16, 16, 16, 0}, Case{13, 33, 257, 3}, Case{97, 65, 40, 0},
                          Case{385, 70, 129, 1}, Case{20, 530, 300, 0}, Case{391, 521, 17, 5});
  CAPTURE(static_cast<int>(layout), c.m, c.n, c.k);
  const Operands o(layout, c, 3);
  ThreadPool pool(2);
  Guarded to(o.start);
  if (into == Into::write) {  // what is replaced must not matter
    for (int64_t i = 0; i < c.m; ++i) {
      std::fill_n(to.data() + i * o.ldc, c.n, std::numeric_limits<float>::quiet_NaN());
    }
  }
  multiply(layout, pool, c, o, into, to.data());
  CHECK(error_of(to.floats(), expected(layout, c, o, into)) < kForwardError);
  CHECK(to.intact());
}

TEST_CASE("the single-threaded block agrees too") {
  const Case c{400, 90, 300, 4};
  const Operands o(Layout::nn, c, 4);
  Guarded to(o.start);
  cpu::gemm_nn_block(c.m, c.n, c.k, o.a.data(), o.lda, o.b.data(), o.ldb, Into::add, to.data(),
                     o.ldc);
  CHECK(error_of(to.floats(), expected(Layout::nn, c, o, Into::add)) < kForwardError);
}

TEST_CASE("the bits of a product do not depend on the pool", "[slow]") {
  const Layout layout = GENERATE(Layout::nt, Layout::nn, Layout::tn);
  const Case c{800, 1100, 270, 0};
  const Operands o(layout, c, 5);
  CHECK(same_bits_on_every_pool([&](ThreadPool& pool) {
    Floats to = o.start;
    multiply(layout, pool, c, o, Into::add, to.data());
    return to;
  }));
}
