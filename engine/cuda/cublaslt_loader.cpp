// cuBLASLt's functions, opened when the first of them is called: the library takes a hundred
// megabytes from the moment it is loaded, and most of what this program is asked needs none of it.
// Each function here has the name of the library's own and hands its arguments on.
#include <cublasLt.h>
#include <dlfcn.h>

#include "base/error.h"

namespace {

void* library() {
  static void* const opened = [] {
    void* handle = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw longspan::failed(
          "cuda: products need cuBLASLt, and libcublasLt.so.13 cannot be opened ({}); install "
          "libcublas of CUDA 13 or set LD_LIBRARY_PATH",
          dlerror());
    }
    return handle;
  }();
  return opened;
}

// The library's function of this name.
template <class Function>
Function* find(Function*, const char* name) {
  void* symbol = dlsym(library(), name);
  if (symbol == nullptr) throw longspan::failed("cuda: libcublasLt has no {}", name);
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace

#define LONGSPAN_FORWARD(name, parameters, ...)       \
  cublasStatus_t name parameters {                    \
    static auto* const function = find(&name, #name); \
    return function(__VA_ARGS__);                     \
  }

LONGSPAN_FORWARD(cublasLtCreate, (cublasLtHandle_t * handle), handle)
LONGSPAN_FORWARD(cublasLtDestroy, (cublasLtHandle_t handle), handle)
LONGSPAN_FORWARD(cublasLtMatmulDescCreate,
                 (cublasLtMatmulDesc_t * operation, cublasComputeType_t compute,
                  cudaDataType_t scale),
                 operation, compute, scale)
LONGSPAN_FORWARD(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t operation), operation)
LONGSPAN_FORWARD(cublasLtMatmulDescSetAttribute,
                 (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                  const void* value, size_t bytes),
                 operation, attribute, value, bytes)
LONGSPAN_FORWARD(cublasLtMatrixLayoutCreate,
                 (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows,
                  uint64_t columns, int64_t stride),
                 layout, type, rows, columns, stride)
LONGSPAN_FORWARD(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), layout)
LONGSPAN_FORWARD(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference),
                 preference)
LONGSPAN_FORWARD(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
                 preference)
LONGSPAN_FORWARD(cublasLtMatmulPreferenceSetAttribute,
                 (cublasLtMatmulPreference_t preference,
                  cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes),
                 preference, attribute, value, bytes)
LONGSPAN_FORWARD(cublasLtMatmulAlgoGetHeuristic,
                 (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                  cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                  cublasLtMatmulPreference_t preference, int wanted,
                  cublasLtMatmulHeuristicResult_t results[], int* found),
                 handle, operation, a, b, c, d, preference, wanted, results, found)
LONGSPAN_FORWARD(cublasLtMatmul,
                 (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                  const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                  cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                  cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                  const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                  cudaStream_t stream),
                 handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                 algorithm, workspace, workspace_bytes, stream)

#undef LONGSPAN_FORWARD

size_t cublasLtGetVersion() {
  static auto* const function = find(&cublasLtGetVersion, "cublasLtGetVersion");
  return function();
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static auto* const function = find(&cublasLtGetStatusString, "cublasLtGetStatusString");
  return function(status);
}
