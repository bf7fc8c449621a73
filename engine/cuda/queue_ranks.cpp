#include "engine/cuda/queue_ranks.h"

#include "engine/cuda/kernels/exchange.h"
#include "engine/cuda/memory.h"

namespace longspan::cuda {

void QueueRanks::read(const std::byte* from, int64_t bytes, std::byte* to) {
  read_bytes(queue_, from, bytes, to);
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
