// Measuring what moves data: copies between the arenas of device and host, file reads and writes,
// and what it costs to hand work from one stream to another. Internal to engine/profile.
#pragma once

#include <filesystem>

#include "engine/profile/sampler.h"

namespace longspan {

/// Adds the samples of copy_h2d, copy_d2h, io_read and io_write; the arguments must outlive their
/// measurement.
void add_copy_samples(Sampler& sampler, Scratch& scratch);
void add_io_samples(Sampler& sampler, Scratch& scratch, FileArena& file);

/// Bytes the file of add_io_samples must have.
int64_t io_file_bytes();

/// Seconds from the end of an op to the start of the op on another stream that waits for it.
double measure_hand_over();
/// Seconds an op of a step takes besides its kernel: resolving operands, clocks, progress.
double measure_op_overhead();

/// Bytes per second that `threads` threads together read and write while they copy.
double measure_memory_bandwidth(int threads);

}  // namespace longspan
