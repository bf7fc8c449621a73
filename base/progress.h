// The progress callback of a long call.
#pragma once

#include <cstdint>
#include <functional>

namespace longspan {

/// done, total (in the unit of the call). Called from the thread that works.
using Progress = std::function<void(int64_t done, int64_t total)>;

}  // namespace longspan
