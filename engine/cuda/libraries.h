// NVIDIA's libraries on one queue: handles, the workspace shared by their kernels, and cached
// plans. Only in the CUDA build; other code uses gemm.h and attention.h.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "engine/cuda/fused_attention.h"
#include "engine/cuda/handle.h"
#include "engine/cuda/plan_cache.h"

namespace longspan::cuda {

/// NVIDIA's advice for cuBLAS on Hopper. One per queue, as its kernels run in order.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

/// The shape of a product: see gemm.cpp.
using GemmKey = std::array<int64_t, 9>;

struct GemmPlan {
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation;
  Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

/// The version as the library encodes it: 10000 * major + 100 * minor + patch.
int64_t cublaslt_version();

class Libraries {
 public:
  /// Opens the libraries and allocates the workspace on the current device. Calls opened() with a
  /// library's name after each is fully opened. Throws failed if a library is not found or does not
  /// start; only cuDNN may be missing, and our own kernels then replace it.
  Libraries(cudaStream_t stream, int64_t compute_capability,
            const std::function<void(const char* library)>& opened);
  ~Libraries();
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  cudaStream_t stream() const { return stream_; }
  cublasLtHandle_t blas() const { return blas_.get(); }
  void* workspace() const { return workspace_; }
  PlanCache<GemmKey, GemmPlan>& gemms() { return gemms_; }
  bool has_attention() const { return attention_ != nullptr; }
  /// REQUIRES: has_attention().
  FusedAttention& attention() { return *attention_; }

 private:
  cudaStream_t stream_;
  Handle<cublasLtHandle_t, cublasLtDestroy> blas_;
  void* workspace_ = nullptr;
  PlanCache<GemmKey, GemmPlan> gemms_;
  std::unique_ptr<FusedAttention> attention_;
};

}  // namespace longspan::cuda
