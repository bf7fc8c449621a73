// A device as the backend sees it: memory, and a queue for each stream that works there.
//
// The CUDA build has one kind (open_device); the tests' host build another, which runs the same
// kernels on a processor. A Device outlives the backends, arenas and queues that are its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/queue.h"
#include "engine/runtime/backend.h"

namespace longspan::cuda {

/// What stands behind figures that are measured on a device.
struct DeviceFacts {
  std::string software;    // "driver 580.82.07, CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0"
  int64_t processors = 1;  // multiprocessors, which share a kernel's work
  int64_t devices = 1;     // this machine has
};

/// A device's memory. `in use` is what all processes have taken.
struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t used_bytes = 0;
};

/// What one step of opening a device has taken of its memory, before any arena.
struct MemoryTerm {
  std::string name;  // as it stands in a hardware profile's device.overhead
  std::string what;  // it is
  int64_t bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< e.g. "NVIDIA H200"
  virtual DeviceFacts facts() const = 0;
  virtual DeviceMemory memory() const = 0;
  /// The first of them, "context", includes what other processes had taken before.
  virtual const std::vector<MemoryTerm>& opening() const = 0;
  /// As Backend::allocate(); host memory is such that copies to and from it need no help of the
  /// host.
  virtual std::unique_ptr<Arena> allocate(Tier tier, int64_t bytes) = 0;
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
