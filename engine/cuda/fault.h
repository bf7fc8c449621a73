// An error found by a kernel, which cannot throw. The kernel writes it and the host reads it at the
// end of the step. It keeps one of several faults in a step.
#pragma once

#include <cstdint>

namespace longspan::cuda {

struct Fault {
  enum class Kind : int32_t { none, token, label, loss, gradient_norm };
  Kind kind = Kind::none;
  int32_t value = 0;  // the token or label
};

/// Throws failed, with advice, if there is a fault.
void throw_fault(const Fault& fault);

}  // namespace longspan::cuda
