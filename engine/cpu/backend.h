// The CPU backend: float32, one compute pool, copies by memcpy on the copy streams' own threads.
#pragma once

#include <memory>

#include "engine/runtime/backend.h"

namespace longspan::cpu {

/// A backend for programs of `model`. `compute_threads` 0: all cores. Throws bad_input if the
/// program's dtype is not float32.
std::unique_ptr<Backend> make_backend(const Program& program, int compute_threads);

}  // namespace longspan::cpu
