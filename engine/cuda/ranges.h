// Ranges on the host's timeline that profilers show: an op's is open while it is put on its queue,
// and what the device then does for it carries its name.
//
// The CUDA build hands them to NVTX, which costs a look at a null pointer where no profiler is
// attached; the tests' host build writes them down. Safe from several threads; a thread's ranges
// nest.
#pragma once

#include <string_view>

namespace longspan::cuda {

class NamedRange {
 public:
  explicit NamedRange(std::string_view name);
  ~NamedRange();
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;
};

}  // namespace longspan::cuda
