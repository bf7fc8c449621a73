// Measures data movement on the CPU: copies between the device and host arenas, file reads and
// writes, and the cost of synchronizing streams. Internal to engine/profile.
#pragma once

#include <filesystem>

#include "engine/profile/sampler.h"

namespace longspan {

/// Adds the samples of copy_h2d and copy_d2h. The arguments must outlive the sampler's run.
void add_copy_samples(Sampler& sampler, Scratch& scratch);
/// Adds the samples of io_read and io_write, likewise.
void add_io_samples(Sampler& sampler, Scratch& scratch, FileArena& file);

/// The size in bytes of the file that add_io_samples() needs.
int64_t io_file_bytes();

/// Returns the seconds from the end of an op to the start of a waiting op on another stream.
double measure_hand_over();
/// Returns the seconds of an op's overhead besides its kernel: clocks and progress counters.
double measure_op_overhead();

/// Returns the bytes per second that `threads` threads together read and write while they copy.
double measure_memory_bandwidth(int threads);

}  // namespace longspan
