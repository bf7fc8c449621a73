// Where device work is put: one queue for each stream of a program that works on the device. What
// is put on a queue runs in order, on the device, after the call has returned.
//
// A Queue belongs to its backend and is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/fault.h"

namespace longspan::cuda {

class Libraries;  // handles and plans of the vendor's libraries (libraries.h)

struct Queue {
  void* stream = nullptr;          // a cudaStream_t
  Libraries* libraries = nullptr;  // null on queues that only copy
  Fault* fault = nullptr;          // in memory that both host and device reach
  /// Scratch of kernels that run one after another on this queue; not part of any arena but of what
  /// the backend takes besides them, see kScratchBytes.
  std::byte* scratch = nullptr;
  /// Whether a library's attention can be had here; without it all of it is our own kernels' work.
  bool has_fused_attention = false;
};

/// Bytes of a queue's scratch: partial sums of columns, statistics of rows, rows that cannot be
/// overwritten in place.
inline constexpr int64_t kScratchBytes = int64_t{64} << 20;

}  // namespace longspan::cuda
