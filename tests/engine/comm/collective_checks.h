// Checks of the collectives for any kind of rank: run by every rank of a world, on threads in one
// test and on processes in another. Every rank can compute the data of all others and compares its
// results with a plain loop. A failed check throws `failed`.
#pragma once

#include <cstdint>

#include "engine/comm/communicator.h"

namespace longspan::testing {

/// Each collective over the whole world, in sizes from zero to several workspaces, with the number
/// of bytes that its comment promises.
void check_collectives(Communicator& comm, uint64_t seed);

/// Rows and columns of a mesh of world.size()/columns x columns ranks, communicating at the same
/// time.
void check_mesh(Communicator& comm, int columns, uint64_t seed);

/// Random exchanges in which several messages go from one rank to another in one call, and in which
/// ranks serve each other in different orders.
void check_exchanges(Communicator& comm, uint64_t seed);

}  // namespace longspan::testing
