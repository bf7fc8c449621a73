// The neighbours of a strategy: all that differ from it by one knob.
//
// A knob is one setting that a person would turn: the tier of one tensor, one tile, one of the
// states, the ZeRO stage, the chunk. Its row says how it is turned (strategy/knobs.h). Sizes are
// halved and doubled. A prime factor moves from one degree of the mesh to another, so that the
// number of ranks stays. Tensor parallelism goes with neither ring nor Ulysses, so between these
// the whole degree moves. Blocks follow the chunk: they keep their number of chunks, or remain one
// block that holds everything.
//
// A neighbour need not be valid; neighbour_result.h reports why it is not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/strategy/strategy.h"

namespace longspan {

struct Neighbour {
  std::string knob;      // its path in the plan's file: "saved.qkv", "parallel.zero"
  std::string from, to;  // its values, as a person reads them
  Strategy strategy;     // its preset is the one it came from
};

/// All neighbours in the order of the plan's file, without repetitions and without `strategy`
/// itself. `with_nvme`: also those that put something into a file. Deterministic. REQUIRES:
/// `strategy` is valid for the length.
std::vector<Neighbour> neighbours(const Strategy& strategy, int64_t sequence, bool with_nvme);

}  // namespace longspan
