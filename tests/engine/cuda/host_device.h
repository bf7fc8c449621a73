// A device that is none: the CUDA backend's kernels, compiled for the host, on queues that are
// threads. What is put on a queue runs later, in order, after what it was told to wait for; so a
// wait that is missing shows as a wrong number, as it would on a GPU.
#pragma once

#include <memory>

#include "engine/cuda/device.h"

namespace longspan::testing {

/// With `lag`, every queue sleeps a random moment before each piece of its work.
std::unique_ptr<cuda::Device> make_host_device(bool lag);

}  // namespace longspan::testing
