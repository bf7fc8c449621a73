// Base class of both kinds of DeviceRanks: the queue, row copies and sums on it, and the count of
// sent bytes.
#pragma once

#include <atomic>

#include "engine/cuda/device_ranks.h"

namespace longspan::cuda {

class QueueRanks : public DeviceRanks {
 public:
  int64_t sent_bytes() const final { return sent_bytes_.load(std::memory_order_relaxed); }

  void read(const std::byte* from, int64_t bytes, std::byte* to) final;
  void copy_rows(const std::byte* from, int64_t from_stride, int64_t rows, int64_t width,
                 std::byte* to, int64_t to_stride) final;
  void add_rows(const float* from, int64_t from_stride, int64_t rows, int64_t width, float* to,
                int64_t to_stride) final;

 protected:
  QueueRanks(const ParallelLayout& parallel, Device& device)
      : queue_(device.queue(parallel.overlap ? Stream::comm : Stream::compute)) {}
  const Queue& queue() const { return queue_; }
  void count_sent(int64_t bytes) { sent_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  const Queue& queue_;
  std::atomic<int64_t> sent_bytes_{0};
};

}  // namespace longspan::cuda
