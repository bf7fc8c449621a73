// The vendor's libraries on one queue: handles, the workspace their kernels share, and the plans
// they have made. Only the CUDA build knows this; everything else sees gemm.h and attention.h.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "engine/cuda/handle.h"
#include "engine/cuda/plan_cache.h"

namespace longspan::cuda {

/// What NVIDIA advises for cuBLAS on Hopper; a queue has one, since its kernels run one by one.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

/// One shape of product: see gemm.cpp.
using GemmKey = std::array<int64_t, 9>;

struct GemmPlan {
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation;
  Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> a, b, c;
  cublasLtMatmulAlgo_t algorithm;
};

class AttentionPlans;  // attention_cudnn.cpp

/// Versions as the libraries number them: 10000 * major + 100 * minor + patch.
int64_t cublaslt_version();
int64_t cudnn_version();  // 0 where it is not to be found

class Libraries {
 public:
  /// Takes the workspace on the current device; calls opened() with a library's name as each is
  /// there with all it takes. Throws failed if a library does not start, or is not to be found,
  /// but for cuDNN, without which our own kernels do its work.
  Libraries(cudaStream_t stream, const std::function<void(const char* library)>& opened);
  ~Libraries();
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  cudaStream_t stream() const { return stream_; }
  cublasLtHandle_t blas() const { return blas_.get(); }
  void* workspace() const { return workspace_; }
  PlanCache<GemmKey, GemmPlan>& gemms() { return gemms_; }
  bool has_attention() const { return attention_ != nullptr; }
  /// REQUIRES: has_attention().
  AttentionPlans& attention() { return *attention_; }

 private:
  cudaStream_t stream_;
  Handle<cublasLtHandle_t, cublasLtDestroy> blas_;
  void* workspace_ = nullptr;
  PlanCache<GemmKey, GemmPlan> gemms_;
  std::unique_ptr<AttentionPlans> attention_;
};

}  // namespace longspan::cuda
