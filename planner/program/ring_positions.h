// The ranks of a mesh whose programs are laid out to find what any of them needs.
//
// Among the indices of a mesh, only the ring position changes the program: the keys of earlier
// positions come first, then those of later ones. Through packing, arenas differ irregularly
// between positions by a few percent, so all positions of a ring are laid out. In a large ring
// evenly spaced ones are, including the first and the last. A pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/strategy/parallel_layout.h"

namespace longspan {

/// These ranks, the first of the mesh first. `ops`: of a rank's program, which limits the work.
std::vector<int64_t> ranks_to_lay_out(const ParallelLayout& parallel, int64_t ops);

}  // namespace longspan
