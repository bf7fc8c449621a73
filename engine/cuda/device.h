// A device as the backend sees it: memory, and a queue for each stream that works there.
//
// The CUDA build has one kind (open_device); the tests' host build another, which runs the same
// kernels on a processor. A Device outlives the backends, arenas and queues that are its own.
#pragma once

#include <memory>
#include <string>

#include "engine/cuda/queue.h"
#include "engine/runtime/backend.h"

namespace longspan::cuda {

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< e.g. "NVIDIA H200"
  /// As Backend::take_memory(); host memory is such that copies to and from it need no help of the
  /// host.
  virtual std::unique_ptr<Arena> take_memory(Tier tier, int64_t bytes) = 0;
  /// REQUIRES: queues().has(stream).
  virtual Queue& queue(Stream stream) = 0;
  /// DeviceQueues of the compute, h2d, d2h and comm streams; finish() also throws what kernels
  /// found.
  virtual DeviceQueues& queues() = 0;
};

}  // namespace longspan::cuda
