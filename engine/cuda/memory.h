// Copies and fills on a queue.
#pragma once

#include "engine/cuda/queue.h"

namespace longspan::cuda {

/// Copies between device and (pinned) host memory, or within either.
void copy_bytes(const Queue&, const std::byte* from, int64_t bytes, std::byte* to);

/// Copies device memory to any host memory, after all that was enqueued before. Waits for it.
void read_bytes(const Queue&, const std::byte* from, int64_t bytes, std::byte* to);

void zero_bytes(const Queue&, std::byte* x, int64_t bytes);

}  // namespace longspan::cuda
