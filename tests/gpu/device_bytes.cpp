#include <cuda_runtime_api.h>

#include "base/error.h"
#include "tests/gpu/under_test.h"

namespace longspan::testing {

int64_t device_bytes_taken() {
  size_t available = 0, total = 0;
  if (const cudaError_t status = cudaMemGetInfo(&available, &total); status != cudaSuccess) {
    throw failed("free memory: {}", cudaGetErrorString(status));
  }
  return static_cast<int64_t>(total - available);
}

}  // namespace longspan::testing
