#include "engine/runtime/backend.h"

namespace longspan {

std::unique_ptr<Arena> Backend::allocate(Tier tier, int64_t bytes) {
  return std::make_unique<MemoryArena>(bytes, tier == Tier::device ? "device" : "host");
}

}  // namespace longspan
