// How far a long call has come.
#pragma once

#include <cstdint>
#include <functional>

namespace longspan {

/// done, total (in whatever unit the call counts). Called from the thread that works.
using Progress = std::function<void(int64_t done, int64_t total)>;

}  // namespace longspan
