// Checks of the collectives for any kind of rank. Every rank of a world runs them, on threads in
// one test and on processes in another. Every rank can compute the data of all others and compares
// its results with a plain loop. A failed check throws `failed`.
#pragma once

#include <cstdint>

#include "engine/comm/communicator.h"

namespace longspan::testing {

/// Checks each collective over the whole world, in sizes from zero to several workspaces, and the
/// number of bytes sent against the collective's comment.
void check_collectives(Communicator& comm, uint64_t seed);

/// Checks rows and columns of a mesh of world.size()/columns x columns ranks that communicate at
/// the same time.
void check_mesh(Communicator& comm, int columns, uint64_t seed);

/// Checks random exchanges with several messages between two ranks in one call, and with different
/// orders of messages on the ranks.
void check_exchanges(Communicator& comm, uint64_t seed);

}  // namespace longspan::testing
