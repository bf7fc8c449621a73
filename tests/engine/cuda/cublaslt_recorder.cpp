#include "tests/engine/cuda/cublaslt_recorder.h"

#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/cuda/element.h"
#include "engine/cuda/launch.h"

using longspan::testing::RecordedLayout;
using longspan::testing::RecordedProduct;

namespace {

struct State {
  std::mutex mutex;
  RecordedProduct last;
  std::vector<RecordedProduct> algorithms;  // what each was found for
  std::string fault;
  bool computes = true;
} state;

// Opaque types of the library.
struct Operation {
  bool transposes_a = false, transposes_b = false;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

Operation& of(cublasLtMatmulDesc_t x) { return *reinterpret_cast<Operation*>(x); }
RecordedLayout& of(cublasLtMatrixLayout_t x) { return *reinterpret_cast<RecordedLayout*>(x); }
Preference& of(cublasLtMatmulPreference_t x) { return *reinterpret_cast<Preference*>(x); }

cublasStatus_t broken(const std::string& rule) {
  const std::lock_guard lock(state.mutex);
  state.fault = rule;
  return CUBLAS_STATUS_INVALID_VALUE;
}

bool same(const RecordedLayout& a, const RecordedLayout& b) {
  return a.type == b.type && a.rows == b.rows && a.columns == b.columns && a.stride == b.stride;
}

// Reads an attribute of the caller's into `to`, which must have its size.
template <class T>
cublasStatus_t take(const void* value, size_t bytes, T& to) {
  if (bytes != sizeof to) return broken("an attribute has another size");
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_shapes(const RecordedProduct& p) {
  const auto m = p.transposes_a ? p.a.columns : p.a.rows;
  const auto k = p.transposes_a ? p.a.rows : p.a.columns;
  const auto k_of_b = p.transposes_b ? p.b.columns : p.b.rows;
  const auto n = p.transposes_b ? p.b.rows : p.b.columns;
  if (k != k_of_b) return broken("the inner dimensions differ");
  if (m != p.c.rows || n != p.c.columns) return broken("the result has another shape");
  if (p.a.type != p.b.type) return broken("the operands have two types");
  const bool pair_is_known =
      p.c.type == p.a.type || (p.a.type == CUDA_R_16BF && p.c.type == CUDA_R_32F);
  if (!pair_is_known) return broken("the library has no such pair of types");
  return CUBLAS_STATUS_SUCCESS;
}

// A matrix as steps between its rows and columns.
template <class T>
struct Operand {
  T* data;
  int64_t row, column;

  Operand(const RecordedLayout& layout, T* first, bool transposed) : data(first), row(1) {
    column = layout.stride;
    if (transposed) std::swap(row, column);
  }
  T& at(int64_t i, int64_t j) const { return data[i * row + j * column]; }
};

template <class T, class C>
void compute(const RecordedProduct& p, const void* a, const void* b, void* c) {
  using longspan::cuda::from_float, longspan::cuda::to_float;
  const Operand<const T> left(p.a, static_cast<const T*>(a), p.transposes_a);
  const Operand<const T> right(p.b, static_cast<const T*>(b), p.transposes_b);
  const Operand<C> out(p.c, static_cast<C*>(c), false);
  const auto inner = static_cast<int64_t>(p.transposes_a ? p.a.rows : p.a.columns);
  for (int64_t j = 0; j < static_cast<int64_t>(p.c.columns); ++j) {
    for (int64_t i = 0; i < static_cast<int64_t>(p.c.rows); ++i) {
      float sum = 0;
      for (int64_t l = 0; l < inner; ++l) sum += to_float(left.at(i, l)) * to_float(right.at(l, j));
      sum *= p.alpha;
      if (p.beta != 0) sum += p.beta * to_float(out.at(i, j));
      out.at(i, j) = from_float<C>(sum);
    }
  }
}

void compute(const RecordedProduct& p, const void* a, const void* b, void* c) {
  using longspan::bfloat16;
  if (p.a.type == CUDA_R_32F) return compute<float, float>(p, a, b, c);
  if (p.c.type == CUDA_R_32F) return compute<bfloat16, float>(p, a, b, c);
  compute<bfloat16, bfloat16>(p, a, b, c);
}

std::optional<RecordedProduct> algorithm_of(uint64_t number) {
  const std::lock_guard lock(state.mutex);
  if (number >= state.algorithms.size()) return std::nullopt;
  return state.algorithms[number];
}

bool is_aligned(const void* pointer, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

}  // namespace

namespace longspan::testing {

RecordedProduct last_product() {
  const std::lock_guard lock(state.mutex);
  return state.last;
}
int64_t algorithms_found() {
  const std::lock_guard lock(state.mutex);
  return static_cast<int64_t>(state.algorithms.size());
}
void compute_products(bool yes) {
  const std::lock_guard lock(state.mutex);
  state.computes = yes;
}

}  // namespace longspan::testing

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&state);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F) return broken("sums are not in float");
  if (scale != CUDA_R_32F) return broken("alpha and beta are not floats");
  *operation = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete &of(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  cublasOperation_t transposition{};
  if (const auto status = take(value, bytes, transposition)) return status;
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) {
    of(operation).transposes_a = transposition == CUBLAS_OP_T;
  } else if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) {
    of(operation).transposes_b = transposition == CUBLAS_OP_T;
  } else {
    return broken("an attribute that the stand-in does not know");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  if (rows == 0 || columns == 0) return broken("a matrix is empty");
  if (stride < static_cast<int64_t>(rows)) return broken("columns overlap");
  if (type != CUDA_R_32F && type != CUDA_R_16BF) return broken("an unknown type");
  *layout =
      reinterpret_cast<cublasLtMatrixLayout_t>(new RecordedLayout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &of(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &of(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference& p = of(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(value, bytes, p.workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(value, bytes, p.reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(value, bytes, p.alignment[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(value, bytes, p.alignment[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(value, bytes, p.alignment[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(value, bytes, p.alignment[3]);
    default:
      return broken("a preference that the stand-in does not know");
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  if (wanted < 1) return broken("no result is wanted");
  if (!same(of(c), of(d))) return broken("c and d differ");
  RecordedProduct p{of(a), of(b), of(c), of(operation).transposes_a, of(operation).transposes_b};
  if (const auto status = check_shapes(p)) return status;
  std::memcpy(p.alignment, of(preference).alignment, sizeof p.alignment);
  for (const uint32_t alignment : p.alignment) {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) return broken("an odd alignment");
  }
  p.reductions = of(preference).reductions;
  const std::lock_guard lock(state.mutex);
  results[0] = {};
  results[0].algo.data[0] = state.algorithms.size();
  state.algorithms.push_back(p);
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const std::optional<RecordedProduct> found = algorithm_of(algorithm->data[0]);
  if (!found) return broken("an unknown algorithm");
  RecordedProduct p = *found;
  if (!same(p.a, of(a_layout)) || !same(p.b, of(b_layout)) || !same(p.c, of(c_layout)) ||
      !same(p.c, of(d_layout)) || p.transposes_a != of(operation).transposes_a ||
      p.transposes_b != of(operation).transposes_b) {
    return broken("the algorithm was found for another product");
  }
  const void* pointers[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (!is_aligned(pointers[i], p.alignment[i])) return broken("less aligned than declared");
  }
  if (!is_aligned(workspace, 16) || workspace_bytes == 0) return broken("no workspace");
  std::memcpy(&p.alpha, alpha, sizeof p.alpha);
  std::memcpy(&p.beta, beta, sizeof p.beta);
  if (p.beta != 0 && c != d) return broken("the sum is not in place");
  const std::lock_guard lock(state.mutex);
  state.last = p;
  if (state.computes) {
    longspan::cuda::Queue queue;
    queue.stream = stream;
    submit(queue, [=] { compute(p, a, b, d); });
  }
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() { return 130000; }
// The text is valid until another rule is broken.
const char* cublasLtGetStatusString(cublasStatus_t) {
  const std::lock_guard lock(state.mutex);
  return state.fault.c_str();
}
