// Switches for finding a fault, set as environment variables.
//
// LONGSPAN_SYNC=1 waits for each op, so that an error names its op.
// LONGSPAN_NO_CUDNN=1 runs the project's own attention kernels, as if cuDNN were not found.
#pragma once

#include <cstdlib>
#include <string_view>

namespace longspan::cuda {

inline bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace longspan::cuda
