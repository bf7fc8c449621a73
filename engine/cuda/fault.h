// What went wrong inside a kernel, which cannot throw: written by the kernel that finds it, read by
// the host when the step is over. Of several faults in a step, one is kept.
#pragma once

#include <cstdint>

namespace longspan::cuda {

struct Fault {
  enum class Kind : int32_t { none, token, label, loss, gradient_norm };
  Kind kind = Kind::none;
  int32_t value = 0;  // the token or label
};

/// Throws failed with what to do about it, unless there is none.
void throw_fault(const Fault& fault);

}  // namespace longspan::cuda
