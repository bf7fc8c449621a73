// The samples of a device's kernels and copies: bfloat16 through the backend's own blocks, as a
// step runs them. Internal to engine/profile.
#pragma once

#include "engine/profile/device_scratch.h"
#include "engine/profile/device_timer.h"
#include "engine/profile/sampler.h"

namespace longspan {

/// What samples of a device share; all of it outlives their measurement.
struct DeviceBench {
  cuda::Device& device;
  DeviceTimer timer;
  DeviceScratch scratch;
  DeviceGrid grid;

  DeviceBench(cuda::Device& device, const DeviceGrid& grid);
  /// Timed runs of what is put on a stream's queue; the first of all goes untimed, and where runs
  /// are short, one before each of theirs.
  TimedRuns runs(Stream stream, Submit submit);
};

/// Adds the samples of products; of attention-free kernels over rows; of those over whole states;
/// and of copies.
void add_product_samples(Sampler& sampler, DeviceBench& bench);
void add_row_samples(Sampler& sampler, DeviceBench& bench);
void add_state_samples(Sampler& sampler, DeviceBench& bench);
void add_copy_samples(Sampler& sampler, DeviceBench& bench);

/// A product of [size, size] matrices, and a copy of `bytes`: to run during other work.
QueueWork square_product(DeviceBench& bench, int64_t size);
QueueWork one_copy(DeviceBench& bench, Stream stream, int64_t bytes);
/// Next to nothing.
QueueWork tiny_kernel(DeviceBench& bench);

}  // namespace longspan
