// The functions that the CUDA build takes from the vendor's libraries, in plain loops: sums are in
// the loops' order, roundings are where the libraries have them.
#include <catch2/catch.hpp>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/gemm.h"
#include "engine/cuda/launch.h"
#include "engine/cuda/ranges.h"
#include "tests/engine/cuda/host_device.h"

namespace longspan::cuda {
namespace {

// C[m,n] (+)= sum over k of a(i, l) * b(l, j).
template <class A, class B, class C>
void product(const Queue& queue, int64_t m, int64_t n, int64_t k, A a, B b, Into into, C* c,
             int64_t ldc) {
  submit(queue, [=] {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += to_float(a(i, l)) * to_float(b(l, j));
        if (into == Into::add) sum += to_float(c[i * ldc + j]);
        c[i * ldc + j] = from_float<C>(sum);
      }
    }
  });
}

}  // namespace

template <class T, class C>
void gemm_nt(const Queue& queue, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
             const T* b, int64_t ldb, Into into, C* c, int64_t ldc) {
  product(
      queue, m, n, k, [=](int64_t i, int64_t l) { return a[i * lda + l]; },
      [=](int64_t l, int64_t j) { return b[j * ldb + l]; }, into, c, ldc);
}
template <class T, class C>
void gemm_nn(const Queue& queue, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
             const T* b, int64_t ldb, Into into, C* c, int64_t ldc) {
  product(
      queue, m, n, k, [=](int64_t i, int64_t l) { return a[i * lda + l]; },
      [=](int64_t l, int64_t j) { return b[l * ldb + j]; }, into, c, ldc);
}
template <class T, class C>
void gemm_tn(const Queue& queue, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
             const T* b, int64_t ldb, Into into, C* c, int64_t ldc) {
  product(
      queue, m, n, k, [=](int64_t i, int64_t l) { return a[l * lda + i]; },
      [=](int64_t l, int64_t j) { return b[l * ldb + j]; }, into, c, ldc);
}

template void gemm_nt(const Queue&, int64_t, int64_t, int64_t, const float*, int64_t, const float*,
                      int64_t, Into, float*, int64_t);
template void gemm_nn(const Queue&, int64_t, int64_t, int64_t, const float*, int64_t, const float*,
                      int64_t, Into, float*, int64_t);
template void gemm_tn(const Queue&, int64_t, int64_t, int64_t, const float*, int64_t, const float*,
                      int64_t, Into, float*, int64_t);
template void gemm_nt(const Queue&, int64_t, int64_t, int64_t, const bfloat16*, int64_t,
                      const bfloat16*, int64_t, Into, bfloat16*, int64_t);
template void gemm_nn(const Queue&, int64_t, int64_t, int64_t, const bfloat16*, int64_t,
                      const bfloat16*, int64_t, Into, bfloat16*, int64_t);
template void gemm_tn(const Queue&, int64_t, int64_t, int64_t, const bfloat16*, int64_t,
                      const bfloat16*, int64_t, Into, float*, int64_t);

namespace {

struct Ranges {
  std::mutex mutex;
  std::vector<std::string> names;
  int open = 0;
};
Ranges& ranges() {
  static Ranges all;
  return all;
}

}  // namespace

NamedRange::NamedRange(std::string_view name) {
  const std::lock_guard lock(ranges().mutex);
  ranges().names.emplace_back(name);
  ++ranges().open;
}
NamedRange::~NamedRange() {
  const std::lock_guard lock(ranges().mutex);
  --ranges().open;
}

}  // namespace longspan::cuda

std::vector<std::string> longspan::testing::take_ranges() {
  const std::lock_guard lock(cuda::ranges().mutex);
  CHECK(cuda::ranges().open == 0);
  return std::exchange(cuda::ranges().names, {});
}
