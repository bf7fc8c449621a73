#include "engine/cuda/memory.h"

#include "engine/cuda/cuda_error.h"

namespace longspan::cuda {

void copy_bytes(const Queue& queue, const std::byte* from, int64_t bytes, std::byte* to) {
  check(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(queue.stream)),
      "copy");
}

void read_bytes(const Queue& queue, const std::byte* from, int64_t bytes, std::byte* to) {
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(queue.stream)), "read");
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "read");
}

void zero_bytes(const Queue& queue, std::byte* x, int64_t bytes) {
  check(cudaMemsetAsync(x, 0, bytes, static_cast<cudaStream_t>(queue.stream)), "zero");
}

}  // namespace longspan::cuda
