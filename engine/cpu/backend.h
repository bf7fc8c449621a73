// The CPU backend: float32, one compute pool, copies by memcpy on the copy streams' own threads.
#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/runtime/backend.h"

namespace longspan::cpu {

/// A backend for programs like `program`. `compute_threads` 0: all cores. `comm` connects it to the
/// other ranks and must outlive it; null where there is one rank. Throws bad_input if the program's
/// dtype is not float32, or if the world has not as many ranks as the program is for.
std::unique_ptr<Backend> make_backend(const Program& program, int compute_threads,
                                      Communicator* comm = nullptr);

}  // namespace longspan::cpu
