// The neighbours of a strategy: all that differ from it by one knob.
//
// A knob is what a person would turn, and how it is turned is said in its row (strategy/knobs.h):
// the tier of one tensor, one tile, one of the states, the ZeRO stage, the chunk. Sizes are halved
// and doubled. Between two degrees of the mesh a prime factor is traded, so that the number of
// ranks stays; where the one is or becomes a tensor group, which goes with neither ring nor
// Ulysses, all of it is. Blocks are counted in chunks, or are one that holds all there is: they
// follow the chunk.
//
// A neighbour need not be valid: why it is not is worth knowing too (neighbour_result.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/strategy/strategy.h"

namespace longspan {

struct Neighbour {
  std::string knob;      // by its place in the plan's file: "saved.qkv", "parallel.zero"
  std::string from, to;  // its values, as a person reads them
  Strategy strategy;     // its preset is the one it came from
};

/// In the order of the plan's file; none twice, and none equal to `strategy`. With `with_nvme` also
/// those that put something into a file. Deterministic. REQUIRES: `strategy` is valid for the
/// length.
std::vector<Neighbour> neighbours(const Strategy& strategy, int64_t sequence, bool with_nvme);

}  // namespace longspan
