#include "engine/cuda/queue_ranks.h"

#include <cuda_runtime_api.h>

#include "engine/cuda/cuda_error.h"
#include "engine/cuda/kernels/exchange.h"

namespace longspan::cuda {

void QueueRanks::read(const std::byte* from, int64_t bytes, std::byte* to) {
  const auto stream = static_cast<cudaStream_t>(queue_.stream);
  longspan::cuda::check(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream),
      "rows of experts");
  longspan::cuda::check(cudaStreamSynchronize(stream), "rows of experts");
}

void QueueRanks::copy_rows(const std::byte* from, int64_t from_stride, int64_t rows, int64_t width,
                           std::byte* to, int64_t to_stride) {
  copy_blocks(queue_, from, from_stride, rows, width, to, to_stride);
}

void QueueRanks::add_rows(const float* from, int64_t from_stride, int64_t rows, int64_t width,
                          float* to, int64_t to_stride) {
  add_blocks(queue_, from, from_stride, rows, width, to, to_stride);
}

}  // namespace longspan::cuda
