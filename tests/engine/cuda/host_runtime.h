// A CUDA runtime for tests, linked in the place of NVIDIA's: devices in the memory of the host,
// streams that are threads, events, and the functions that the project calls. Kernels are those
// compiled for the host (engine/cuda/launch.h).
//
// It refuses what the real one refuses, and some of what is only wrong there: copies of memory that
// is neither a device's nor pinned, and pointers beyond their allocation.
#pragma once

#include <cstdint>

namespace longspan::testing {

/// The memory of the device, in bytes.
inline constexpr int64_t kRuntimeDeviceBytes = int64_t{2} << 30;

/// With `yes`, streams that are made from now on sleep for random times before pieces of their
/// work.
void let_streams_lag(bool yes);

/// The allocations of devices and of pinned memory that there are.
int64_t runtime_allocations();

}  // namespace longspan::testing
