#include <cuda_runtime_api.h>

#include "base/error.h"
#include "engine/cuda/open_device.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {

std::unique_ptr<cuda::Device> open_under_test(bool) { return cuda::open_device(0); }
bool on_gpu() { return true; }
bool repeats_bits(DType dtype) { return dtype == DType::float32; }

std::optional<int64_t> device_bytes_taken() {
  size_t available = 0, total = 0;
  if (const cudaError_t status = cudaMemGetInfo(&available, &total); status != cudaSuccess) {
    throw failed("free memory: {}", cudaGetErrorString(status));
  }
  return static_cast<int64_t>(total - available);
}

}  // namespace longspan::testing
