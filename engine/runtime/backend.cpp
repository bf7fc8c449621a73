#include "engine/runtime/backend.h"

namespace longspan {

std::unique_ptr<Arena> Backend::take_memory(Tier tier, int64_t bytes) {
  return std::make_unique<MemoryArena>(bytes, tier == Tier::device ? "device" : "host");
}

}  // namespace longspan
