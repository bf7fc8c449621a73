// A device for the backend: memory, and a queue for each stream that runs on the device.
//
// open_device() makes it. A Device outlives its backends, arenas and queues.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/queue.h"
#include "engine/runtime/backend.h"

namespace longspan::cuda {

/// The context of measurements on a device: its software and size.
struct DeviceFacts {
  std::string software;              // "driver 580.82.07, CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0"
  int64_t processors = 1;            // multiprocessors
  int64_t devices = 1;               // on this machine
  bool has_fused_attention = false;  // cuDNN's; else our own kernels, which are slow
};

/// A device's memory. used_bytes counts all processes.
struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t used_bytes = 0;
};

/// The memory taken by one step of opening a device, before any arena.
struct MemoryTerm {
  std::string name;  // as in device.overhead of a hardware profile
  std::string what;  // what the memory is for
  int64_t bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  ///< e.g. "NVIDIA H200"
  virtual DeviceFacts facts() const = 0;
  virtual DeviceMemory memory() const = 0;
  /// The memory taken by opening. The first term, "context", includes that of other processes.
  virtual const std::vector<MemoryTerm>& opening() const = 0;
  /// As Backend::allocate(). Host memory is pinned, so that the device copies it by DMA.
  virtual std::unique_ptr<Arena> allocate(Tier tier, int64_t bytes) = 0;
  /// REQUIRES: queues().has(stream).
  virtual Queue& queue(Stream stream) = 0;
  /// DeviceQueues of the compute, h2d, d2h and comm streams; finish() also throws faults of
  /// kernels.
  virtual DeviceQueues& queues() = 0;
  /// Sets a function that is called, from any thread, repeatedly during every wait for the device
  /// and at the end of every step. If it throws, it must first make sure that the wait ends; its
  /// exception is thrown after the wait. Empty: none. REQUIRES: no step is running.
  virtual void watch(std::function<void()> check) = 0;
};

}  // namespace longspan::cuda
