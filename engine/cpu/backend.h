// The CPU backend: float32, one compute pool, copies by memcpy on the copy streams' threads.
#pragma once

#include <memory>

#include "engine/comm/communicator.h"
#include "engine/runtime/backend.h"

namespace longspan::cpu {

/// Returns a backend for programs like `program`. `compute_threads` 0: all cores. `comm` connects
/// it to the other ranks and must outlive it; null for one rank. Throws bad_input if the program's
/// dtype is not float32 or its number of ranks is not the world's.
std::unique_ptr<Backend> make_backend(const Program& program, int compute_threads,
                                      Communicator* comm = nullptr);

}  // namespace longspan::cpu
