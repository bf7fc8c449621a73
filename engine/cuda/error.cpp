#include "engine/cuda/error.h"

#include "base/error.h"

namespace longspan::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw failed("cuda: {}: {}", what, cudaGetErrorString(status));
}

}  // namespace longspan::cuda
