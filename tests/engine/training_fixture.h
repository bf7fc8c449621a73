// Plans and data for tests that train: a small Llama on this repository's example text.
#pragma once

#include <memory>

#include "engine/train/data.h"
#include "engine/train/optimizer.h"
#include "planner/plan/plan.h"

namespace longspan::testing {

/// Llama style, byte-level: L = 2, d = 128, GQA 4:2.
ModelSpec byte_llama();

/// A plan on a CPU machine with ample memory.
Plan plan_for(const ModelSpec& model, const Strategy& strategy, int64_t sequence,
              int64_t microbatches = 1);

/// Strategies: everything on the device in one chunk, and everything chunked and offloaded.
Strategy whole_sequence(int64_t sequence);
Strategy chunked_and_offloaded(int64_t chunk);

std::shared_ptr<const TokenSource> example_text(int64_t sequence);

}  // namespace longspan::testing
