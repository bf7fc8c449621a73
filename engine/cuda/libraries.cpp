#include "engine/cuda/libraries.h"

#include "base/error.h"
#include "engine/cuda/cuda_error.h"

namespace longspan::cuda {

int64_t cublaslt_version() { return static_cast<int64_t>(cublasLtGetVersion()); }

Libraries::Libraries(cudaStream_t stream, int64_t compute_capability,
                     const std::function<void(const char*)>& opened)
    : stream_(stream), attention_(open_fused_attention(stream, compute_capability)) {
  if (attention_ != nullptr) opened("cudnn");
  if (const cublasStatus_t status = cublasLtCreate(blas_.out()); status != CUBLAS_STATUS_SUCCESS) {
    throw failed("cublasLt: the library does not start: {}", cublasLtGetStatusString(status));
  }
  check(cudaMalloc(&workspace_, kGemmWorkspaceBytes), "workspace of products");
  opened("cublaslt");
}

Libraries::~Libraries() { (void)cudaFree(workspace_); }

}  // namespace longspan::cuda
