// A CUDA runtime for tests, linked in the place of NVIDIA's: devices in the memory of the host,
// streams that are threads, events, and the functions that the project calls. Kernels are those
// compiled for the host (engine/cuda/launch.h).
//
// It refuses what the real one refuses, and some of what is only wrong there: copies of memory that
// is neither a device's nor pinned, and pointers beyond their allocation.
//
// With LONGSPAN_IDLE_DEVICE=1 in the environment a device has eight times the memory, most of which
// is never touched: kernels only take time, and large blocks are neither copied nor filled.
// Programs then run as on a GPU, at sizes that this machine could not compute. Their numbers mean
// nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/device.h"

namespace longspan::testing {

inline constexpr int kRuntimeDevices = 8;
/// The memory of each device, in bytes.
inline constexpr int64_t kRuntimeDeviceBytes = int64_t{2} << 30;

/// Opens a device as the GPU build does. With `lag`, every stream sleeps for a random time before
/// pieces of its work: a missing wait then gives a wrong number, as on a GPU.
std::unique_ptr<cuda::Device> open_host_device(bool lag = false, int index = 0);

/// As long as it exists, events are at the times that it tells, whatever the clock says.
class ManualClock {
 public:
  ManualClock();
  ~ManualClock();
  void advance(std::chrono::nanoseconds time);
};

/// The allocations of devices and of pinned memory that there are.
int64_t runtime_allocations();

/// Returns the ranges (engine/cuda/ranges.h) that threads have opened since the last call, in
/// order. Throws std::logic_error if one is still open.
std::vector<std::string> take_ranges();

}  // namespace longspan::testing
