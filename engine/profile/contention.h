// Measures how much streams slow each other down: runs a loop of matrix products on the compute
// pool while another thread copies or does file I/O. Internal to engine/profile.
#pragma once

#include "engine/cpu/thread_pool.h"
#include "engine/runtime/arena.h"

namespace longspan {

/// Rates of concurrent work as fractions of the rates alone, each in (0, 1].
struct Contention {
  double compute_under_copy = 1, copy_under_compute = 1;
  double compute_under_io = 1, io_under_compute = 1;
  double duplex = 1;  // a copy during another copy
};

/// Measures for about `seconds`.
Contention measure_contention(ThreadPool& pool, FileArena& file, double seconds);

}  // namespace longspan
