// Errors of the CUDA runtime and of the libraries on top of it, as exceptions.
#pragma once

#include <cuda_runtime_api.h>

namespace longspan::cuda {

/// Throws failed("<what>: <the runtime's own words>") unless `status` is success.
void check(cudaError_t status, const char* what);

}  // namespace longspan::cuda
