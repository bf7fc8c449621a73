// The device that the checks of this folder run on. The checks are linked twice: with this
// machine's GPU (gpu_checks), and with kernels and a CUDA runtime of the host (cuda_checks_test),
// which tests the checks themselves on machines without a GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/cuda/device.h"
#include "planner/program/tensor.h"

namespace longspan::testing {

/// Opens a device. Throws failed, with the reason, if there is none. `lag` only affects the host
/// device: queues sleep for a random time before each piece of their work.
std::unique_ptr<cuda::Device> open_under_test(bool lag = false, int index = 0);

/// Returns whether the device is a GPU. On the host, tests choose smaller sizes.
bool on_gpu();

/// Returns whether steps in this type are bitwise reproducible. On a GPU, attention's backward in
/// bfloat16 is not: it adds to dq in the order in which its thread blocks finish.
bool repeats_bits(DType dtype);

/// Returns the bytes of the current device's memory in use by all processes.
int64_t device_bytes_taken();

/// The seed of random numbers: LONGSPAN_SEED, or 1.
uint64_t base_seed();

}  // namespace longspan::testing
