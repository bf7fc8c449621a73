// The ops of a program that talk to other ranks, on the CPU: what moves is host memory, packed into
// the op's workspace where a peer's part does not lie in one piece.
//
// Sums over ranks are in rank order, so the bits do not depend on timing. Called from one thread at
// a time; the communicator belongs to the caller.
#pragma once

#include "engine/comm/communicator.h"
#include "engine/runtime/backend.h"

namespace longspan::cpu {

/// True for the kinds run_exchange() knows.
bool is_exchange(OpKind kind);

/// Throws Error(failed) if a rank is lost meanwhile.
void run_exchange(Communicator& comm, const Program& program, const Op& op,
                  const OperandPointers& operands);

}  // namespace longspan::cpu
