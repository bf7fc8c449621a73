#include "engine/cuda/gemm.h"

#include <type_traits>

#include "base/error.h"
#include "engine/cuda/libraries.h"

namespace longspan::cuda {
namespace {

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw failed("cublasLt: {}: {}", what, cublasLtGetStatusString(status));
  }
}

template <class T>
constexpr cudaDataType kType = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16BF;

// cuBLASLt's matrices are column-major, and a row-major C[m,n] is a column-major C^T[n,m]. So the
// operands are swapped: X is our B and Y our A, unchanged in memory, and transposed unless they
// already are [n,k] and [k,m].
struct Product {
  int64_t m, n, k;
  bool transpose_x, transpose_y;
  int64_t ldx, ldy, ldc;
  bool adds;
  uint32_t alignment = 0;  // of all three pointers, in bytes
};

// The largest power of two that divides all three pointers, up to 256, the library's default.
uint32_t alignment_of(const void* x, const void* y, const void* c) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y) |
                         reinterpret_cast<uintptr_t>(c) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

GemmPlan make_plan(const Libraries& libraries, const Product& p, cudaDataType in,
                   cudaDataType out) {
  GemmPlan plan;
  check_blas(cublasLtMatmulDescCreate(plan.operation.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F),
             "operation");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transpose) {
    const cublasOperation_t value = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_blas(
        cublasLtMatmulDescSetAttribute(plan.operation.get(), attribute, &value, sizeof value),
        "transposition");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_x);
  set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_y);
  const auto layout = [&](cublasLtMatrixLayout_t* to, cudaDataType type, int64_t rows,
                          int64_t columns, bool transposed, int64_t stride) {
    if (transposed) std::swap(rows, columns);
    check_blas(cublasLtMatrixLayoutCreate(to, type, rows, columns, stride), "layout");
  };
  layout(plan.a.out(), in, p.n, p.k, p.transpose_x, p.ldx);
  layout(plan.b.out(), in, p.k, p.m, p.transpose_y, p.ldy);
  layout(plan.c.out(), out, p.n, p.m, false, p.ldc);

  Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  check_blas(cublasLtMatmulPreferenceCreate(preference.out()), "preference");
  const uint64_t workspace = kGemmWorkspaceBytes;
  check_blas(
      cublasLtMatmulPreferenceSetAttribute(
          preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
      "workspace");
  // Partial sums of a split product are added in float, never in bfloat16.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  check_blas(cublasLtMatmulPreferenceSetAttribute(preference.get(),
                                                  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                  &reductions, sizeof reductions),
             "reductions");
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check_blas(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &p.alignment,
                                                    sizeof p.alignment),
               "alignment");
  }
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check_blas(cublasLtMatmulAlgoGetHeuristic(libraries.blas(), plan.operation.get(), plan.a.get(),
                                            plan.b.get(), plan.c.get(), plan.c.get(),
                                            preference.get(), 1, &found, &count),
             "algorithm");
  if (count == 0) {
    throw failed("cublasLt: no algorithm for a product of {} x {} x {}", p.m, p.n, p.k);
  }
  plan.algorithm = found.algo;
  return plan;
}

template <class T, class C>
void multiply(const Queue& queue, Product p, const T* x, const T* y, C* c) {
  Libraries& libraries = *queue.libraries;
  p.alignment = alignment_of(x, y, c);
  const GemmKey key{p.m,
                    p.n,
                    p.k,
                    p.transpose_x + 2 * p.transpose_y + 4 * p.adds,
                    p.ldx,
                    p.ldy,
                    p.ldc,
                    p.alignment,
                    kType<T> * 64 + kType<C>};
  const GemmPlan& plan =
      libraries.gemms().get(key, [&] { return make_plan(libraries, p, kType<T>, kType<C>); });
  const float alpha = 1, beta = p.adds ? 1 : 0;
  check_blas(cublasLtMatmul(libraries.blas(), plan.operation.get(), &alpha, x, plan.a.get(), y,
                            plan.b.get(), &beta, c, plan.c.get(), c, plan.c.get(), &plan.algorithm,
                            libraries.workspace(), kGemmWorkspaceBytes, libraries.stream()),
             "product");
}

}  // namespace

template <class T, class C>
void gemm_nt(const Queue& queue, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
             const T* b, int64_t ldb, Into into, C* c, int64_t ldc) {
  multiply(queue, {m, n, k, true, false, ldb, lda, ldc, into == Into::add}, b, a, c);
}
template <class T, class C>
void gemm_nn(const Queue& queue, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
             const T* b, int64_t ldb, Into into, C* c, int64_t ldc) {
  multiply(queue, {m, n, k, false, false, ldb, lda, ldc, into == Into::add}, b, a, c);
}
template <class T, class C>
void gemm_tn(const Queue& queue, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda,
             const T* b, int64_t ldb, Into into, C* c, int64_t ldc) {
  multiply(queue, {m, n, k, false, true, ldb, lda, ldc, into == Into::add}, b, a, c);
}

template void gemm_nt(const Queue&, int64_t, int64_t, int64_t, const float*, int64_t, const float*,
                      int64_t, Into, float*, int64_t);
template void gemm_nn(const Queue&, int64_t, int64_t, int64_t, const float*, int64_t, const float*,
                      int64_t, Into, float*, int64_t);
template void gemm_tn(const Queue&, int64_t, int64_t, int64_t, const float*, int64_t, const float*,
                      int64_t, Into, float*, int64_t);
template void gemm_nt(const Queue&, int64_t, int64_t, int64_t, const bfloat16*, int64_t,
                      const bfloat16*, int64_t, Into, bfloat16*, int64_t);
template void gemm_nt(const Queue&, int64_t, int64_t, int64_t, const bfloat16*, int64_t,
                      const bfloat16*, int64_t, Into, float*, int64_t);
template void gemm_nn(const Queue&, int64_t, int64_t, int64_t, const bfloat16*, int64_t,
                      const bfloat16*, int64_t, Into, bfloat16*, int64_t);
template void gemm_tn(const Queue&, int64_t, int64_t, int64_t, const bfloat16*, int64_t,
                      const bfloat16*, int64_t, Into, float*, int64_t);

}  // namespace longspan::cuda
