// The device that the checks of this folder run on. The same checks are linked twice: with the GPU
// of this machine (gpu_checks), and with the kernels compiled for the host (cuda_checks_test),
// which tests the checks themselves where there is no GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/cuda/device.h"
#include "planner/program/tensor.h"

namespace longspan::testing {

/// A new device. Throws failed, with the reason, where there is none. `lag` only affects the host:
/// queues sleep a random moment before each piece of their work.
std::unique_ptr<cuda::Device> open_under_test(bool lag = false);

/// Whether it is a GPU; for the host, tests choose sizes that take loops no longer than seconds.
bool on_gpu();

/// Whether steps in this type give the same bits every time. On a GPU the backward of attention in
/// bfloat16 adds to dq in the order in which its blocks end.
bool repeats_bits(DType dtype);

/// Bytes of the device's memory in use by all processes; empty where there is no GPU.
std::optional<int64_t> device_bytes_taken();

/// The seed of random numbers: LONGSPAN_SEED, or 1.
uint64_t base_seed();

}  // namespace longspan::testing
