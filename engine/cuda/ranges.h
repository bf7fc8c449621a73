// Named ranges on the host's timeline for profilers. An op's range is open while it is submitted,
// and profilers attribute its device work to it.
//
// The CUDA build uses NVTX, which costs a test of a null pointer if no profiler is attached; the
// tests' host build records them. Safe from several threads; the ranges of a thread nest.
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
