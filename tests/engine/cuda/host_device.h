// A fake device: the CUDA backend's kernels, compiled for the host, on queues that are threads.
// Work on a queue runs asynchronously, in order, after the work that it waits for. A missing wait
// gives a wrong number, as on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/device.h"

namespace longspan::testing {

/// The memory size that the device reports.
inline constexpr int64_t kHostDeviceBytes = int64_t{2} << 30;

/// With `lag`, every queue sleeps for a random time before each piece of its work.
std::unique_ptr<cuda::Device> make_host_device(bool lag);

/// Forgets the attention plans that were prepared for a queue, when its device ends.
void forget_attention(const cuda::Queue& queue);

/// Returns the ranges (engine/cuda/ranges.h) that threads have opened since the last call, in
/// order. Fails the test if one is still open.
std::vector<std::string> take_ranges();

}  // namespace longspan::testing
