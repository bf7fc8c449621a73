// The samples of a device's kernels and copies, in bfloat16, through the same kernels of the
// backend that a step runs. Internal to engine/profile.
#pragma once

#include "engine/profile/device_scratch.h"
#include "engine/profile/device_timer.h"
#include "engine/profile/sampler.h"

namespace longspan {

/// The state that all samples of a device share. Must outlive their measurement.
struct DeviceBench {
  cuda::Device& device;
  DeviceTimer timer;
  DeviceScratch scratch;
  DeviceGrid grid;

  DeviceBench(cuda::Device& device, const DeviceGrid& grid);
  /// Returns a function that times runs of `submit` on a stream's queue. An untimed run precedes
  /// the first call and every call with several repeats.
  TimedRuns runs(Stream stream, Submit submit);
  /// The same on the compute stream under sustained load: untimed runs for grid.load_seconds
  /// precede every call but the first. For kernels that take so much power that the device reduces
  /// its clocks, as it does in a step of seconds.
  TimedRuns loaded_runs(Submit submit);
};

/// Add the samples of matrix products; of kernels over rows, except attention; of kernels over
/// whole states; and of copies.
void add_product_samples(Sampler& sampler, DeviceBench& bench);
void add_row_samples(Sampler& sampler, DeviceBench& bench);
void add_state_samples(Sampler& sampler, DeviceBench& bench);
void add_copy_samples(Sampler& sampler, DeviceBench& bench);

/// A product of [size, size] matrices, and a copy of `bytes`, to run concurrently with other work.
QueueWork square_product(DeviceBench& bench, int64_t size);
QueueWork one_copy(DeviceBench& bench, Stream stream, int64_t bytes);
/// The smallest possible kernel, for overheads.
QueueWork tiny_kernel(DeviceBench& bench);

}  // namespace longspan
