// A device as the backend sees it: memory, and a queue for each stream that works there.
//
// The CUDA build has one kind (open_device); the tests' host build another, which runs the same
// kernels on a processor. A Device outlives the backends, arenas and queues that are its own.
#pragma once

#include <functional>
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
  /// From now on `check` is called again and again, by any thread, while that waits for the device,
  /// and at the end of every step.
  /// What it throws is thrown once the wait is over, so it must have seen to it that it ends.
  /// Empty: nothing is called. REQUIRES: no step is running.
  virtual void watch(std::function<void()> check) = 0;
};

}  // namespace longspan::cuda
