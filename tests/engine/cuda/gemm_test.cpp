// What products tell cuBLASLt: layouts, types, alignments and sizes, and the numbers that come of
// it.
#include "engine/cuda/gemm.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "engine/cuda/libraries.h"
#include "tests/engine/cuda/cublaslt_recorder.h"

namespace longspan::cuda {
namespace {

using testing::last_product;

enum class Form { nt, nn, tn };

struct Setup {
  Libraries libraries{nullptr, 90, [](const char*) {}};
  Queue queue;
  Setup() { queue.libraries = &libraries; }
};

template <class T, class C>
void multiply(Form form, const Queue& queue, int64_t m, int64_t n, int64_t k, const T* a,
              int64_t lda, const T* b, int64_t ldb, Into into, C* c, int64_t ldc) {
  if (form == Form::nt) gemm_nt(queue, m, n, k, a, lda, b, ldb, into, c, ldc);
  if (form == Form::nn) gemm_nn(queue, m, n, k, a, lda, b, ldb, into, c, ldc);
  if (form == Form::tn) gemm_tn(queue, m, n, k, a, lda, b, ldb, into, c, ldc);
}

template <class T>
std::vector<T> random_values(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values) value = from_float<T>(uniform(random));
  return values;
}

// The product of the header's definition against what the stand-in made of the call. Rows are
// `gap` elements longer than they need to be.
template <class T, class C>
void check_numbers(Form form, Into into, int64_t gap) {
  constexpr int64_t kM = 3, kN = 5, kK = 7;
  const bool a_is_transposed = form == Form::tn, b_is_transposed = form == Form::nt;
  const int64_t lda = (a_is_transposed ? kM : kK) + gap, ldb = (b_is_transposed ? kK : kN) + gap;
  const int64_t ldc = kN + gap;
  const std::vector<T> a = random_values<T>((a_is_transposed ? kK : kM) * lda, 1);
  const std::vector<T> b = random_values<T>((b_is_transposed ? kN : kK) * ldb, 2);
  const std::vector<C> before = random_values<C>(kM * ldc, 3);
  std::vector<C> c = before;
  Setup setup;
  multiply(form, setup.queue, kM, kN, kK, a.data(), lda, b.data(), ldb, into, c.data(), ldc);
  const auto at = [](const auto& values, int64_t i) {
    return static_cast<double>(to_float(values[static_cast<size_t>(i)]));
  };
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < ldc; ++j) {
      CAPTURE(i, j);
      const int64_t here = i * ldc + j;
      if (j >= kN) {  // between rows
        CHECK(at(c, here) == at(before, here));
        continue;
      }
      double sum = into == Into::add ? at(before, here) : 0;
      for (int64_t l = 0; l < kK; ++l) {
        sum += at(a, a_is_transposed ? l * lda + i : i * lda + l) *
               at(b, b_is_transposed ? j * ldb + l : l * ldb + j);
      }
      // Seven products of at most 1, added in float.
      CHECK(at(c, here) == Approx(sum).epsilon(sizeof(C) == 2 ? 8e-3 : 1e-6).margin(8 * 0x1p-24));
    }
  }
}

}  // namespace

TEST_CASE("products are those of the definition, in every form and type", "[cuda]") {
  for (const Form form : {Form::nt, Form::nn, Form::tn}) {
    for (const Into into : {Into::write, Into::add}) {
      for (const int64_t gap : {0, 4}) {
        CAPTURE(static_cast<int>(form), static_cast<int>(into), gap);
        check_numbers<float, float>(form, into, gap);
        if (form == Form::tn) {
          check_numbers<bfloat16, float>(form, into, gap);
        } else {
          check_numbers<bfloat16, bfloat16>(form, into, gap);
        }
      }
    }
  }
}

TEST_CASE("products name the types of their operands, and reduce in float", "[cuda]") {
  Setup setup;
  std::vector<bfloat16> a(64), b(64);
  std::vector<float> c(64);
  gemm_tn(setup.queue, 8, 8, 8, a.data(), 8, b.data(), 8, Into::add, c.data(), 8);
  CHECK(last_product().a.type == CUDA_R_16BF);
  CHECK(last_product().b.type == CUDA_R_16BF);
  CHECK(last_product().c.type == CUDA_R_32F);
  CHECK(last_product().beta == 1);
  // Partial sums of a split product are added in float, and not in the type of the result.
  CHECK(last_product().reductions == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

TEST_CASE("a product declares no more alignment than its operands have", "[cuda]") {
  Setup setup;
  alignas(256) bfloat16 memory[4][256] = {};
  for (const int64_t offset : {0, 1, 2, 4, 8, 64}) {
    CAPTURE(offset);
    gemm_nt(setup.queue, 4, 4, 4, memory[0], 4, memory[1] + offset, 4, Into::write, memory[2], 4);
    const auto expected = static_cast<uint32_t>(offset == 0 ? 256 : 2 * offset);
    for (const uint32_t alignment : last_product().alignment) CHECK(alignment == expected);
  }
}

TEST_CASE("an algorithm is looked for once per shape", "[cuda]") {
  Setup setup;
  alignas(256) float a[128] = {}, b[128] = {}, c[128] = {};
  const int64_t before = testing::algorithms_found();
  for (int i = 0; i < 3; ++i) {
    gemm_nt(setup.queue, 8, 8, 8, a, 8, b, 8, Into::write, c, 8);
  }
  CHECK(testing::algorithms_found() == before + 1);
  gemm_nt(setup.queue, 8, 8, 8, a, 8, b, 8, Into::add, c, 8);
  gemm_nn(setup.queue, 8, 8, 8, a, 8, b, 8, Into::write, c, 8);
  gemm_nt(setup.queue, 4, 8, 8, a, 8, b, 8, Into::write, c, 8);
  CHECK(testing::algorithms_found() == before + 4);
  gemm_nt(setup.queue, 8, 8, 8, a, 16, b, 8, Into::write, c, 8);
  gemm_nt(setup.queue, 8, 8, 8, a, 8, b, 16, Into::write, c, 8);
  gemm_nt(setup.queue, 8, 8, 8, a, 8, b, 8, Into::write, c, 16);
  CHECK(last_product().c.stride == 16);
  CHECK(testing::algorithms_found() == before + 7);
}

// The logits of 128K tokens: 2^34 elements, and addresses beyond 2^32.
TEST_CASE("sizes beyond 32 bits arrive whole", "[cuda]") {
  testing::compute_products(false);
  Setup setup;
  alignas(256) bfloat16 element;
  constexpr int64_t kTokens = int64_t{1} << 33, kVocab = 128256, kHidden = 8192;
  gemm_nt(setup.queue, kTokens, kVocab, kHidden, &element, kHidden, &element, kHidden, Into::write,
          &element, kVocab + (int64_t{1} << 32));
  testing::compute_products(true);
  // Column-major, the result is [vocab, tokens].
  CHECK(last_product().c.rows == kVocab);
  CHECK(last_product().c.columns == kTokens);
  CHECK(last_product().c.stride == kVocab + (int64_t{1} << 32));
  CHECK(last_product().a.rows == kHidden);
  CHECK(last_product().a.columns == kVocab);
  CHECK(last_product().b.columns == kTokens);
}

TEST_CASE("what the library refuses is an error that names it", "[cuda]") {
  Setup setup;
  alignas(256) float a[64] = {}, c[64] = {};
  CHECK_THROWS_WITH(gemm_nn(setup.queue, 8, 8, 8, a, 8, a, 4, Into::write, c, 8),
                    Catch::Contains("cublasLt: layout: columns overlap"));
}

}  // namespace longspan::cuda
