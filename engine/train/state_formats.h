// Numbers of a rank's states in the formats of their buffers: float32, parameters as kernels read
// them, frozen parameters in 4 bits, moments in a format of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/executor.h"

namespace longspan {

/// The numbers of a state's buffer, padding included.
int64_t state_elements(const Program& program, BufferId buffer);
/// They as float32, which is exact.
std::vector<float> read_state(const Executor& executor, BufferId buffer);
/// Writes them, rounded to the format. REQUIRES: state_elements() values.
void write_state(Executor& executor, BufferId buffer, const std::vector<float>& values);

}  // namespace longspan
