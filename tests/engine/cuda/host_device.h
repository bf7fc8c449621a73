// A fake device: the CUDA backend's kernels, compiled for the host, on queues that are
// threads. What is put on a queue runs later, in order, after what it was told to wait for; so a
// wait that is missing shows as a wrong number, as it would on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/device.h"

namespace longspan::testing {

/// Memory size that the device reports.
inline constexpr int64_t kHostDeviceBytes = int64_t{2} << 30;

/// With `lag`, every queue sleeps a random moment before each piece of its work.
std::unique_ptr<cuda::Device> make_host_device(bool lag);

/// The ranges (engine/cuda/ranges.h) that threads have opened since the last call, in their order.
/// Fails the test if one is still open.
std::vector<std::string> take_ranges();

}  // namespace longspan::testing
