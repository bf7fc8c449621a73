// cuBLASLt's functions, forwarded to the library, which is loaded on the first call.
#include <cublasLt.h>

#include "engine/cuda/opened_library.h"

namespace {

const longspan::cuda::OpenedLibrary& library() {
  static const longspan::cuda::OpenedLibrary opened("libcublasLt.so.13", "products need cuBLASLt",
                                                    "install libcublas of CUDA 13");
  return opened;
}

}  // namespace

LONGSPAN_FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), handle)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), handle)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatmulDescCreate,
                 (cublasLtMatmulDesc_t * operation, cublasComputeType_t compute,
                  cudaDataType_t scale),
                 operation, compute, scale)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t operation),
                 operation)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
                 (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                  const void* value, size_t bytes),
                 operation, attribute, value, bytes)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatrixLayoutCreate,
                 (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows,
                  uint64_t columns, int64_t stride),
                 layout, type, rows, columns, stride)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout),
                 layout)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceCreate,
                 (cublasLtMatmulPreference_t * preference), preference)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceDestroy,
                 (cublasLtMatmulPreference_t preference), preference)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
                 (cublasLtMatmulPreference_t preference,
                  cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes),
                 preference, attribute, value, bytes)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
                 (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                  cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                  cublasLtMatmulPreference_t preference, int wanted,
                  cublasLtMatmulHeuristicResult_t results[], int* found),
                 handle, operation, a, b, c, d, preference, wanted, results, found)
LONGSPAN_FORWARD(cublasStatus_t, cublasLtMatmul,
                 (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                  const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                  cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                  cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                  const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                  cudaStream_t stream),
                 handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                 algorithm, workspace, workspace_bytes, stream)
LONGSPAN_FORWARD(size_t, cublasLtGetVersion, ())
LONGSPAN_FORWARD(const char*, cublasLtGetStatusString, (cublasStatus_t status), status)
