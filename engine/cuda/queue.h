// A queue of device work: one for each stream of a program that runs on the device. The work of a
// queue runs on the device in order, asynchronously to the caller.
//
// A Queue belongs to its backend and is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/fault.h"

namespace longspan::cuda {

class Libraries;  // handles and plans of NVIDIA's libraries (libraries.h)

struct Queue {
  void* stream = nullptr;          // a cudaStream_t
  Libraries* libraries = nullptr;  // null on queues that only copy
  Fault* fault = nullptr;          // in memory mapped to both host and device
  /// Scratch of kernels, which run one after another on this queue. Not part of any arena, but of
  /// the backend's overhead; see kScratchBytes.
  std::byte* scratch = nullptr;
  /// Whether a library's fused attention is available; otherwise our own kernels do all attention.
  bool has_fused_attention = false;
  int64_t compute_capability = 0;  // 10 * major + minor
};

/// Bytes of a queue's scratch: partial sums of columns, statistics of rows, and rows that cannot be
/// overwritten in place.
inline constexpr int64_t kScratchBytes = int64_t{64} << 20;

}  // namespace longspan::cuda
