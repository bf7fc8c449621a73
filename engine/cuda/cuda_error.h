// Turns errors of the CUDA runtime and of libraries on top of it into exceptions.
#pragma once

#include <cuda_runtime_api.h>

namespace longspan::cuda {

/// Throws failed("cuda: <what>: <the runtime's text>") unless `status` is success.
void check(cudaError_t status, const char* what);

}  // namespace longspan::cuda
